import {$, Asking, COLOURS, Form, SAMPLERS, copyable, make, onceAFrame, progress, status, stream} from "./common.js";
import {Parts, against, cells, deltaFigure, evidence, tradeoffFigure} from "./curves.js";

const FIELDS = [
  {name: "records", label: "Records", min: 1, max: 1e9, from: 100, to: 1e7, whole: true, value: 60000},
  {name: "batch", label: "Batch", min: 1, max: 1e9, from: 1, to: 1e5, whole: true, value: 600, help: "expected number of records in a round"},
  {name: "epochs", label: "Epochs", min: 1, max: 10000, from: 1, to: 1000, whole: true, value: 10},
  {name: "noise_multiplier", label: "Noise multiplier", min: 0.05, max: 1000, from: 0.3, to: 12, value: 1, help: "standard deviation of the noise / clip norm"},
  {name: "delta", label: "Delta", min: 1e-30, max: 0.5, from: 1e-12, to: 0.01, value: 1e-5},
  {name: "group", label: "Records protected together", min: 1, max: 64, whole: true, value: 1},
  {name: "sampler", label: "How batches are drawn", kind: "many", options: SAMPLERS, value: ["poisson", "balls-in-bins", "shuffle"]},
  {name: "clipping", more: true, label: "Clipping", kind: "choice", options: {individual: "each record", batch: "the whole batch", mixed: "clip-groups"}, value: "individual"},
  {name: "clip_groups", more: true, label: "Clip-groups", min: 1, max: 1000, whole: true, value: 1, help: "for clip-groups only"},
  {name: "relation", more: true, label: "Neighbouring relation", kind: "choice", options: {"": "each sampler's own", "add-remove": "add-remove", "zero-out": "zero-out", "replace": "replace"}, value: ""},
  {name: "figure", label: "Figure", kind: "one", options: {noise: "epsilon against noise", epochs: "epsilon against epochs", delta: "delta against epsilon", tradeoff: "what an attacker can reach"}, value: "noise"},
];

let parts = new Parts([]);
const asking = new Asking();
const form = new Form($("form"), FIELDS, () => asking.later(compare));
copyable($("share"), () => location.href);

async function compare(signal) {
  form.check();
  const params = form.values();
  const chosen = params.getAll("sampler");
  if (!chosen.length) throw new Error("Choose at least one way of drawing batches.");
  const fresh = new Parts(chosen);
  const drawn = onceAFrame(() => { if (!signal.aborted) show(parts); });
  await stream("/api/compare/stream", params, (part) => {
    fresh.add(part);
    parts = fresh;
    if (part.kind === "row") rows(parts);
    drawn();
  }, signal);
  show(parts);
  const missing = chosen.filter((name) => !parts.rows.get(name)?.epsilon);
  return missing.length ? `Done; nothing is proved for ${missing.map((name) => SAMPLERS[name]).join(", ")}.` : "Done.";
}

function rows(now) {
  const body = now.names.map((name) => {
    const row = now.rows.get(name);
    return make("tr", {"data-sampler": name}, make("th", {scope: "row"}, SAMPLERS[name]), ...cells(row), make("td", {}, row?.relation ?? ""));
  });
  $("rows").tBodies[0].replaceChildren(...body);
}

function show(now) {
  rows(now);
  progress(now.done, now.of);
  if (now.done < now.of) status(`${now.done} of ${now.of} computed`);
  $("words").textContent = "";
  const look = {names: SAMPLERS, colours: COLOURS, delta: Number(form.get("delta"))};
  switch (form.get("figure")) {
    case "noise":
      against(now, {...look, title: "Epsilon against noise", x: "noise multiplier", now: Number(form.get("noise_multiplier")), log: true});
      break;
    case "epochs":
      against(now, {...look, title: "Epsilon against epochs", x: "epochs", now: Number(form.get("epochs")), log: true});
      break;
    case "delta":
      deltaFigure(now, look);
      break;
    default:
      tradeoffFigure(now, look);
  }
  evidence(now, SAMPLERS);
}

asking.now(compare);
