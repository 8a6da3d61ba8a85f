// What the pages share: a form that is a URL, answers that come piece by piece, tables, copying.

// Names of samplers and the words for them, from the registry: pages/frame.html.
export const SAMPLERS = JSON.parse(document.getElementById("samplers").textContent);
export const COLOURS = Object.fromEntries(Object.keys(SAMPLERS).map((name, i) => [name, i]));

export const $ = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export const value = (side) => (side === "inf" ? Infinity : side);
export const inWords = (text) => (text === "inf" ? "infinite" : text);

// ---- a form that is a URL -------------------------------------------------------------------------------------------

// A field: {name, label, kind: "slider" | "text" | "choice" | "many" | "one" | "several", value, ...}. Sliders are
// logarithmic; "several" is a choice to which others of the same list can be added.
export class Form {
  constructor(element, fields, changed) {
    this.fields = fields;
    this.element = element;
    this.extra = {};
    const more = make("details", {}, make("summary", {}, "More settings"));
    for (const field of fields) (field.more ? more : element).append(build(field));
    if (fields.some((field) => field.more)) element.append(more);
    this.read(location.search);
    element.addEventListener("submit", (event) => event.preventDefault());
    element.addEventListener("input", (event) => {
      pair(event.target);
      this.repeated.delete(event.target.name || event.target.dataset.for);
      for (const field of fields) if (field.kind === "several") set(element, field, get(element, field));
      this.write();
      changed();
    });
    addEventListener("popstate", () => {
      this.read(location.search);
      changed();
    });
    this.write();
  }

  // Put the values of a URL into the form; what it does not name has its usual value.
  read(search) {
    const asked = new URLSearchParams(search);
    this.extra = {};
    this.repeated = new Map();
    for (const field of this.fields) {
      const given = asked.getAll(field.name);
      if (given.length > 1 && !SEVERAL.includes(field.kind)) this.repeated.set(field.name, given);
      set(this.element, field, given.length ? given : [].concat(field.value).map(String));
      asked.delete(field.name);
    }
    for (const [name, text] of asked) this.extra[name] = text;
  }

  // Of several values of one setting none is dropped in silence.
  check() {
    for (const [name, given] of this.repeated) throw new Error(`The address gives ${name} ${given.length} times (${given.join(", ")}): choose one.`);
  }

  // The values as parameters of a request, all of them or only those that are not the usual ones.
  values(all = true) {
    const params = new URLSearchParams();
    for (const field of this.fields) {
      const now = get(this.element, field);
      const usual = [].concat(field.value).map(String);
      if (field.local && all) continue;
      if (all ? field.min !== undefined || now.some((text) => text !== "") : now.join() !== usual.join()) for (const text of now) params.append(field.name, text);
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

  // Keep the state in the address, so that it can be shared.
  write() {
    const params = this.values(false);
    for (const [name, text] of Object.entries(this.extra)) params.set(name, text);
    const query = params.toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
  }
}

const SEVERAL = ["many", "several"];

// Fill the list of a field of kind "several".
function list(form, field, names) {
  const select = form.querySelector(`[name="${field.name}"]`);
  const before = [...select.options].slice(1).map((option) => option.value);
  const all = [...new Set(names)].filter(Boolean).sort();
  if (all.join("\n") === before.join("\n")) return;
  select.replaceChildren(select.options[0], ...all.map((one) => make("option", {value: one}, one)));
  document.getElementById(`${field.name}-more`).replaceChildren(...all.map((one, i) => {
    const id = `${field.name}-more-${i}`;
    return make("div", {class: "choice"}, make("input", {type: "checkbox", value: one, id, "data-for": field.name}), make("label", {for: id}, one));
  }));
}

function build(field) {
  if (field.kind === "many" || field.kind === "one") {
    const box = make("fieldset", {}, make("legend", {}, field.label));
    for (const [name, label] of Object.entries(field.options)) {
      const id = `${field.name}-${name}`;
      const input = make("input", {type: field.kind === "many" ? "checkbox" : "radio", name: field.name, value: name, id});
      box.append(make("div", {class: "choice"}, input, make("label", {for: id}, label)));
    }
    return box;
  }
  const box = make("div", {class: "field"}, make("label", {for: field.name}, field.label));
  const told = field.help ? {"aria-describedby": `${field.name}-help`} : {};
  if (field.kind === "choice") {
    const select = make("select", {id: field.name, name: field.name, ...told});
    for (const [name, label] of Object.entries(field.options)) select.append(make("option", {value: name}, label));
    box.append(select);
  } else if (field.kind === "several") {
    box.append(make("select", {id: field.name, name: field.name, ...told}, make("option", {value: ""}, "choose …")));
  } else if (field.kind === "text") {
    box.append(make("input", {type: "text", id: field.name, name: field.name, spellcheck: "false", ...told}));
  } else {
    const exact = make("input", {type: "number", id: field.name, name: field.name, min: field.min, max: field.max, step: field.whole ? 1 : "any", required: true, ...told});
    const slider = make("input", {type: "range", "data-for": field.name, "aria-label": `${field.label}, slider`, min: 0, max: 1, step: 1 / 240});
    slider.field = field;
    exact.field = field;
    box.append(make("div", {class: "pair"}, slider, exact));
  }
  if (field.help) box.append(make("span", {class: "help", id: `${field.name}-help`}, field.help));
  if (field.kind === "several") box.append(make("details", {}, make("summary", {}, field.together), make("div", {id: `${field.name}-more`, class: "list"})));
  return box;
}

function atShare({min, max, whole, from, to}, share) {
  const [low, high] = [from ?? min, to ?? max];
  if (share <= 0) return low;
  if (share >= 1) return high;
  const raw = low * (high / low) ** share;
  return whole ? Math.round(raw) : Number(raw.toPrecision(3));
}

function shareOf({min, max, from, to}, number) {
  const [low, high] = [from ?? min, to ?? max];
  return Math.log(Math.min(Math.max(number, low), high) / low) / Math.log(high / low);
}

// A slider and its number follow each other.
function pair(input) {
  if (!input.field) return;
  if (input.type === "range") {
    const exact = document.getElementById(input.dataset.for);
    exact.value = atShare(input.field, Number(input.value));
    input.setAttribute("aria-valuetext", exact.value);
  } else {
    const slider = document.querySelector(`[data-for="${input.id}"]`);
    slider.value = shareOf(input.field, Number(input.value));
    slider.setAttribute("aria-valuetext", input.value);
  }
}

function set(form, field, texts) {
  if (field.kind === "several") {
    const select = form.querySelector(`[name="${field.name}"]`);
    list(form, field, [...[...select.options].map((option) => option.value), ...texts]);
    select.value = texts[0];
    if (texts.length > 1) document.getElementById(`${field.name}-more`).parentElement.open = true;
    for (const box of form.querySelectorAll(`[type=checkbox][data-for="${field.name}"]`)) {
      box.checked = texts.slice(1).includes(box.value);
      box.disabled = !texts[0] || box.value === texts[0];
    }
    return;
  }
  if (field.kind === "many" || field.kind === "one") {
    for (const input of form.querySelectorAll(`[name="${field.name}"]`)) input.checked = texts.includes(input.value);
  } else {
    const input = form.querySelector(`[name="${field.name}"]`);
    input.value = texts[0];
    pair(input);
  }
}

function get(form, field) {
  if (field.kind === "many" || field.kind === "one") return [...form.querySelectorAll(`[name="${field.name}"]:checked`)].map((input) => input.value);
  const first = form.querySelector(`[name="${field.name}"]`).value;
  if (field.kind !== "several" || !first) return [first];
  const others = form.querySelectorAll(`[type=checkbox][data-for="${field.name}"]:checked`);
  return [first, ...[...others].map((box) => box.value).filter((value) => value !== first)];
}

// ---- answers --------------------------------------------------------------------------------------------------------

async function refusal(response) {
  if (response.status === 401) location.assign("/login");
  try {
    return (await response.json()).message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

export async function ask(path, params, options = {}) {
  const response = await fetch(`${path}?${params}`, options);
  if (!response.ok) throw new Error(await refusal(response));
  return response;
}

// Server-sent events of one request; resolves when they end, throws with the server's words.
export async function stream(path, params, part, signal) {
  const response = await ask(path, params, {signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value: text, done} = await reader.read();
    if (done) return;
    const events = (rest + text).split("\n\n");
    rest = events.pop();
    for (const one of events) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/s.exec(one) ?? [];
      if (name === "part") {
        answered("new");
        part(JSON.parse(data));
      }
      if (name === "error") throw new Error(JSON.parse(data).message);
    }
  }
}

// What the page shows: the answer to the "new" question; an "old" one, dimmed, until the first part of the new one has
// come; or "none", because the question was refused: numbers of another question would pass for its answer.
export function answered(which) {
  document.body.dataset.answer = which;
}

// One question at a time: a new one cancels the old one. Shows progress, the Stop button and problems.
export class Asking {
  constructor({wait = 30} = {}) {
    this.wait = wait;
    $("stop")?.addEventListener("click", () => {
      this.control?.abort();
      if (document.body.dataset.answer === "old") answered("none");
      this.idle("Stopped. Change something to go on.");
    });
  }

  later(question) {
    this.control?.abort();
    answered("old");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(question), this.wait);
  }

  async now(question) {
    this.control?.abort();
    const control = new AbortController();
    this.control = control;
    answered("old");
    $("problem").hidden = true;
    $("stop").hidden = false;
    document.body.dataset.state = "asking";
    try {
      const words = await question(control.signal);
      if (!control.signal.aborted) this.idle(words ?? "");
    } catch (error) {
      if (control.signal.aborted) return;
      answered("none");
      this.idle("Refused, so there is nothing to show.");
      problem(error instanceof TypeError ? "The server cannot be reached." : error.message);
    }
  }

  idle(words) {
    $("stop").hidden = true;
    status(words);
    document.body.dataset.state = "idle";
  }
}

export function status(words) {
  if ($("status").textContent !== words) $("status").textContent = words;
}

export function problem(words) {
  $("problem").textContent = words;
  $("problem").hidden = false;
}

// What to call often and is done at most once a frame.
export function onceAFrame(what) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; what(); });
  };
}

export function progress(done, of) {
  const bar = $("progress");
  bar.max = of || 1;
  bar.value = done;
}

export function copyable(button, text) {
  const usual = button.textContent;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = usual; }, 1500);
  });
}

// A table of numbers next to a figure, for those who do not see it.
export function table(caption, header, rows) {
  const head = make("tr", {}, ...header.map((text) => make("th", {scope: "col"}, text)));
  const body = rows.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, String(text)))));
  return make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
}
