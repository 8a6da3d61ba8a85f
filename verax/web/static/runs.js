import {$, Asking, Form, ask, copyable, inWords, make, problem, status, stream, table, value} from "./common.js";
import {draw, limits, safe, short} from "./figure.js";

const FIELDS = [
  {name: "name", label: "Ledger", kind: "choice", options: {"": "choose …"}, value: "", help: "in the folder that the server was started with"},
  {name: "delta", label: "Delta", min: 1e-30, max: 0.5, from: 1e-12, to: 0.01, value: 1e-5},
  {name: "group", label: "Records protected together", min: 1, max: 64, whole: true, value: 1},
];

let file; // a ledger that was opened from this computer; it stays in this tab
let last;
const asking = new Asking({wait: 200});
const wanted = new URLSearchParams(location.search).get("name") ?? "";
if (wanted) FIELDS[0].options[wanted] = wanted;
const form = new Form($("form"), FIELDS, () => {
  if (form.get("name")) file = undefined;
  asking.later(open);
});
copyable($("share"), () => location.href);
const upload = make("input", {type: "file", id: "file", accept: ".ledger"});
$("form").append(make("div", {class: "field"},
  make("label", {for: "file"}, "Or open one from this computer"), upload,
  make("span", {class: "help"}, "It is checked and forgotten by the server, so it has no link to share.")));
upload.addEventListener("input", (event) => {
  event.stopPropagation();
  [file] = upload.files;
  $("form").querySelector("[name=name]").value = "";
  form.write();
  asking.now(open);
});

async function fill() {
  const {folder, runs} = await (await ask("/api/runs", "")).json();
  const select = $("form").querySelector("[name=name]");
  for (const name of runs) if (name !== wanted) select.append(make("option", {value: name}, name));
  if (!folder) $("name-help").textContent = "the server was started without a folder: verax serve --runs FOLDER";
  else if (!runs.length) $("name-help").textContent = "there is no .ledger in the server's folder yet";
}

async function open(signal) {
  const params = form.values();
  params.delete("name");
  if (file) {
    show(await (await ask("/api/run", params, {method: "POST", body: file, signal})).json());
    return "Read from this computer.";
  }
  const name = form.get("name");
  $("run").hidden = !name;
  if (!name) return "Choose a ledger, or open one.";
  params.set("name", name);
  do {
    await stream("/api/run/stream", params, (part) => {
      if (part.kind === "run") show(part);
      if (!part.over) status("The run is not over; watching its ledger …");
    }, signal).catch((error) => {
      if (!error.message.startsWith("stopped after")) throw error;
    });
  } while (last && !last.over && !signal.aborted);
  return "The run is over.";
}

function show(run) {
  last = run;
  $("run").hidden = false;
  $("run-title").textContent = run.name;
  $("warning").hidden = !run.insecure_seed;
  $("warning").textContent = "The randomness of this run came from a seed that somebody chose: it is not private.";
  $("rounds").max = run.declared;
  $("rounds").value = run.released;
  $("rounds-words").textContent = `${run.released} of ${run.declared}`;
  facts(run);
  figure(run);
  downloads();
  log(run);
}

function facts(run) {
  const both = (e) => (e ? `${inWords(e.shown.lower)} to ${inWords(e.shown.upper)}` : run.why_not);
  const rows = [
    ["Epsilon, whole run", `${both(run.epsilon)} at delta ${run.delta}: holds however the end was chosen, if by looking at what was released`, "epsilon"],
    ["Epsilon, spent so far", `${both(run.spent)}: holds if neither data nor results had a say in when the run ends`, "spent"],
    ["State", run.over ? `${run.ended.how}${run.ended.reason ? `: ${run.ended.reason}` : ""}` : "not over, or broke off"],
    ["Protected", `any ${run.group === 1 ? "record" : `${run.group} records`}, ${run.relation}`],
    ["Noise multiplier", run.noise_multiplier.join(", then ")],
    ["Clip norm", run.clip_norm.length > 8 ? `${Math.min(...run.clip_norm)} to ${Math.max(...run.clip_norm)}, by round` : run.clip_norm.join(", then ")],
    ["Mechanism", run.mechanism.join("; then ")],
    ["Resumed", run.resumed ? `${run.resumed} times` : "never"],
    ["Begun", `${run.begun}, with verax ${run.verax}`],
    ["Run", run.run],
    ["Hash of the last line", run.head],
  ];
  if (run.ended?.private) rows.splice(3, 0, ["Not covered", "that it stopped there shows something of the data, without noise"]);
  $("facts").tBodies[0].replaceChildren(...rows.map(([name, text, key]) => make("tr", {"data-fact": key}, make("th", {scope: "row"}, name), make("td", {}, String(text)))));
}

function figure(run) {
  const points = run.points.map((p) => ({x: p.rounds, lower: value(p.epsilon.lower), upper: value(p.epsilon.upper)}));
  if (!points.length) return;
  const title = "Epsilon spent against rounds";
  draw($("figure"), {
    title, told: `After ${run.released} of ${run.declared} rounds.`, now: run.released,
    bands: [{name: "epsilon of a run declared to end there", colour: 0, points}],
    x: {label: "rounds", ...limits([...points.map((p) => p.x), 0])},
    y: {label: "epsilon", ...limits(points.flatMap((p) => [p.lower, p.upper]))},
  });
  $("caption").textContent = "Solid: at most. Dashed: at least. Dotted: rounds released so far.";
  $("numbers").replaceChildren(table(title, ["Rounds", "At least", "At most"], points.map((p) => [p.x, safe(p.lower, false), safe(p.upper, true)])));
}

const KINDS = {html: "page", json: "JSON", txt: "text"};

function downloads() {
  const links = Object.entries(KINDS).map(([kind, word]) => {
    const params = form.values();
    params.set("format", kind);
    const link = make("a", {href: `/api/run/statement?${params}`, download: `statement.${kind}`, id: `download-${kind}`}, `Download as ${word}`);
    if (file) link.addEventListener("click", (event) => {
      event.preventDefault();
      save(kind, params);
    });
    return link;
  });
  $("downloads").replaceChildren(...links.flatMap((link) => [link, " "]));
}

async function save(kind, params) {
  try {
    params.delete("name");
    const blob = await (await ask("/api/run/statement", params, {method: "POST", body: file})).blob();
    const link = make("a", {href: URL.createObjectURL(blob), download: `statement.${kind}`});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } catch (error) {
    problem(error.message);
  }
}

function log(run) {
  $("log-words").textContent = run.log.length
    ? "From the log that the run itself published next to its ledger. verax has not checked these numbers, and the statement does not cover them: if they were computed from private data, they are a release of their own."
    : "Not shown. They are computed from private data, and nothing protects them: to publish them would release more than the epsilon above. A ledger holds only what is public. If your run publishes a log of its own (accuracy on public data, say), put it next to the ledger, as JSON lines with a round each, with the ending .log.";
  $("log").replaceChildren(...run.log.map((series) => {
    const place = make("div", {class: "figure"});
    const points = series.points.map(([x, y]) => ({x, y}));
    requestAnimationFrame(() => draw(place, {
      title: series.name, told: `last: ${short(points.at(-1).y)}`, scatters: [{name: series.name, colour: 0, points}],
      x: {label: "rounds", min: 0, max: Math.max(...points.map((p) => p.x), 1)}, y: {label: series.name, ...limits(points.map((p) => p.y))},
    }));
    return make("figure", {}, place);
  }));
}

fill().catch((error) => problem(error.message));
asking.now(open);
