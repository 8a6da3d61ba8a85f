// A form that is made from the JSON schema of a request (verax/web/requests.py) and kept in the
// address, so that it can be shared.

import {$, make} from "./dom.js";

const SCHEMA = JSON.parse($("fields").textContent);
const SEVERAL = ["many", "several"];

// A field: {name, label, help, kind, value, ...}. The kinds are "slider" (logarithmic, next to its
// number), "text", "choice" (a list), "one" and "many" (buttons), and "several" (a list, and
// others of the same list to add).
function described(name) {
  const property = SCHEMA[name];
  const labels = property["x-labels"] ?? {};
  const given = property.items?.enum ?? property.enum;
  const choices = property.type === "boolean" ? ["true", "false"] : given;
  const option = (choice) => [choice, labels[choice] ?? choice];
  const options = choices?.filter((choice) => choice !== "none").map(option);
  const number = ["integer", "number"].includes(property.type);
  return {
    name, label: property.title, help: property.description, value: property.default,
    kind: property.type === "array" ? "many" : choices ? "choice" : number ? "slider" : "text",
    options: options && Object.fromEntries(options),
    min: property.minimum, max: property.maximum, whole: property.type === "integer",
    slider: property["x-slider"] ?? [property.minimum, property.maximum],
  };
}

// Names of samplers and the words for them, in the registry's order, and the place of each.
export const SAMPLERS = SCHEMA.sampler ? described("sampler").options : {};
export const COLOURS = Object.fromEntries(Object.keys(SAMPLERS).map((name, i) => [name, i]));

export const fields = (...names) => names.map(described);
export const moreFields = (...names) => fields(...names).map((field) => ({...field, more: true}));
export const figureField = (value) => (
  {...described("figure"), help: undefined, kind: "one", value});

export class Form {
  constructor(element, all, changed) {
    this.fields = all;
    this.element = element;
    const more = make("details", {}, make("summary", {}, "More settings"));
    for (const field of all) (field.more ? more : element).append(build(field));
    if (all.some((field) => field.more)) element.append(more);
    this.read(location.search);
    element.addEventListener("submit", (event) => event.preventDefault());
    element.addEventListener("input", (event) => {
      pair(event.target);
      this.repeated.delete(event.target.name || event.target.dataset.for);
      for (const {name, kind} of all) if (kind === "several") this.choose(name, this.all(name));
      this.write();
      changed();
    });
    addEventListener("popstate", () => {
      this.read(location.search);
      changed();
    });
    this.write();
  }

  // Put the values of an address into the form; what it does not name has its usual value.
  read(search) {
    const asked = new URLSearchParams(search);
    this.extra = {};
    this.repeated = new Map();
    for (const field of this.fields) {
      const given = asked.getAll(field.name);
      if (given.length > 1 && !SEVERAL.includes(field.kind)) this.repeated.set(field.name, given);
      set(this.element, field, given.length ? given : usual(field));
      asked.delete(field.name);
    }
    for (const [name, text] of asked) this.extra[name] = text;
  }

  // Of several values of one setting none is dropped in silence.
  check() {
    for (const [name, given] of this.repeated) {
      const values = given.join(", ");
      throw new Error(`The address gives ${name} ${given.length} times (${values}): choose one.`);
    }
  }

  // The values as parameters of a request, all of them or only those that are not the usual ones.
  values(all = true) {
    const params = new URLSearchParams();
    for (const field of this.fields) {
      const now = get(this.element, field);
      const asked = field.min !== undefined || now.some((text) => text !== "");
      const wanted = all ? asked && !field.local : now.join() !== usual(field).join();
      if (wanted) for (const text of now) params.append(field.name, text);
    }
    return params;
  }

  get(name) {
    return this.all(name)[0];
  }

  all(name) {
    return get(this.element, this.field(name));
  }

  field(name) {
    return this.fields.find((field) => field.name === name);
  }

  choose(name, texts) {
    set(this.element, this.field(name), texts);
  }

  // What can be chosen in a field of kind "several"; what is chosen stays on its list.
  offer(name, names) {
    const chosen = this.all(name);
    list(this.element, this.field(name), [...names, ...chosen]);
    this.choose(name, chosen);
  }

  // Keep the state in the address.
  write() {
    const params = this.values(false);
    for (const [name, text] of Object.entries(this.extra)) params.set(name, text);
    const query = params.toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
  }
}

const usual = (field) => [].concat(field.value).map(String);
const named = (form, field) => form.querySelector(`[name="${field.name}"]`);
const boxes = (form, field) => [...form.querySelectorAll(`[name="${field.name}"]`)];
const added = (form, field) => (
  [...form.querySelectorAll(`[type=checkbox][data-for="${field.name}"]`)]);

function choiceBox(input, id, label) {
  return make("div", {class: "choice"}, input, make("label", {for: id}, label));
}

// Fill the list of a field of kind "several".
function list(form, field, names) {
  const select = named(form, field);
  const before = [...select.options].slice(1).map((option) => option.value);
  const all = [...new Set(names)].filter(Boolean).sort();
  if (all.join("\n") === before.join("\n")) return;
  const options = all.map((one) => make("option", {value: one}, one));
  select.replaceChildren(select.options[0], ...options);
  $(`${field.name}-more`).replaceChildren(...all.map((one, i) => {
    const id = `${field.name}-more-${i}`;
    const box = make("input", {type: "checkbox", value: one, id, "data-for": field.name});
    return choiceBox(box, id, one);
  }));
}

function build(field) {
  const {name, label, help, kind} = field;
  if (kind === "many" || kind === "one") {
    const type = kind === "many" ? "checkbox" : "radio";
    const choices = Object.entries(field.options).map(([value, words]) => {
      const id = `${name}-${value}`;
      return choiceBox(make("input", {type, name, value, id}), id, words);
    });
    return make("fieldset", {}, make("legend", {}, label), ...choices);
  }
  const box = make("div", {class: "field"}, make("label", {for: name}, label), control(field));
  if (help) box.append(make("span", {class: "help", id: `${name}-help`}, help));
  if (kind === "several") {
    const others = make("div", {id: `${name}-more`, class: "list"});
    box.append(make("details", {}, make("summary", {}, field.together), others));
  }
  return box;
}

function control(field) {
  const {name, label, min, max} = field;
  const described = field.help ? `${name}-help` : undefined;
  const common = {id: name, name, "aria-describedby": described};
  switch (field.kind) {
    case "text":
      return make("input", {type: "text", spellcheck: "false", ...common});
    case "several":
      return make("select", common, make("option", {value: ""}, "choose …"));
    case "choice": {
      const option = ([value, words]) => make("option", {value}, words);
      return make("select", common, ...Object.entries(field.options).map(option));
    }
    default: {
      const step = field.whole ? 1 : "any";
      const exact = make("input", {type: "number", min, max, step, required: true, ...common});
      const range = {min: 0, max: 1, step: 1 / 240};
      const names = {"data-for": name, "aria-label": `${label}, slider`};
      const slider = make("input", {type: "range", ...range, ...names});
      slider.field = exact.field = field;
      return make("div", {class: "pair"}, slider, exact);
    }
  }
}

function atShare({slider: [low, high], whole}, share) {
  if (share <= 0) return low;
  if (share >= 1) return high;
  const raw = low * (high / low) ** share;
  return whole ? Math.round(raw) : Number(raw.toPrecision(3));
}

function shareOf({slider: [low, high]}, number) {
  return Math.log(Math.min(Math.max(number, low), high) / low) / Math.log(high / low);
}

// A slider and its number follow each other.
function pair(input) {
  if (!input.field) return;
  const exact = $(input.field.name);
  const slider = document.querySelector(`[type=range][data-for="${input.field.name}"]`);
  if (input === slider) exact.value = atShare(input.field, Number(slider.value));
  else slider.value = shareOf(input.field, Number(exact.value));
  slider.setAttribute("aria-valuetext", exact.value);
}

function set(form, field, texts) {
  const input = named(form, field);
  switch (field.kind) {
    case "many":
    case "one":
      for (const box of boxes(form, field)) box.checked = texts.includes(box.value);
      break;
    case "several":
      list(form, field, [...[...input.options].map((option) => option.value), ...texts]);
      input.value = texts[0];
      if (texts.length > 1) $(`${field.name}-more`).parentElement.open = true;
      for (const box of added(form, field)) {
        box.checked = texts.slice(1).includes(box.value);
        box.disabled = !texts[0] || box.value === texts[0];
      }
      break;
    default:
      input.value = texts[0];
      pair(input);
  }
}

function get(form, field) {
  if (field.kind === "many" || field.kind === "one") {
    return boxes(form, field).filter((box) => box.checked).map((box) => box.value);
  }
  const first = named(form, field).value;
  if (field.kind !== "several" || !first) return [first];
  const others = added(form, field).filter((box) => box.checked && box.value !== first);
  return [first, ...others.map((box) => box.value)];
}
