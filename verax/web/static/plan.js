import {$, copyable, fileField, fillRows, make, onceAFrame} from "./dom.js";
import {problem, progress, row, status} from "./dom.js";
import {draw, limits, safe, short} from "./figure.js";
import {COLOURS, Form, SAMPLERS, fields, moreFields} from "./form.js";
import {Requests, ask, askJson, stream, value} from "./request.js";
import {bestByGraph, expectedOf, utilityGraph} from "./utility.js";

const FEW = 12;
// What is drawn across and upwards.
const FIGURES = {
  signal: {
    title: "Signal to noise of the run against rounds",
    x: {label: "rounds", of: (plan) => plan.rounds},
    y: {label: "signal of the run", of: (plan) => value(plan.signal_of_run)},
  },
  noise: {
    title: "Smallest proved noise against epochs",
    x: {label: "epochs", of: (plan) => plan.epochs},
    y: {label: "noise multiplier", of: (plan) => plan.noise_multiplier},
  },
};

const nothing = () => ({
  plans: [], ranked: undefined, undominated: new Set(), left: [], notes: [], best: undefined,
});
let found = {...nothing(), ranked: []};
let all = false;
let asked = "";
const requests = new Requests({wait: 350});
const form = new Form($("form"), [
  ...fields("records", "epsilon", "delta", "epochs", "batch", "sampler"),
  ...moreFields("group", "clipping", "clip_groups", "relation", "rounds_at_least"),
  ...moreFields("rounds_at_most", "noise_at_most", "ratio_at_most"),
  ...fields("rank"),
  {
    name: "figure", label: "Figure", kind: "one", local: true, value: "signal",
    options: {signal: "signal of the run against rounds", noise: "noise against epochs"},
  },
], () => {
  if (form.values().toString() === asked) show();
  else requests.later(plan);
});
copyable($("share"), () => location.href);
copyable($("copy-python"), () => $("python").textContent);
copyable($("copy-command"), () => $("command").textContent);
$("all").addEventListener("click", () => { all = !all; show(); });

// A utility graph, measured on public data (docs/utility.md): it is read in this tab and not sent
// anywhere.
let graph;
$("form").append(fileField(
  "graph", "Utility graph, if you have one",
  "of verax plan utility --out; it stays in this tab, so it is not part of the link.",
  ".json", async (file) => {
    $("problem").hidden = true;
    graph = undefined;
    try {
      if (file) graph = utilityGraph(JSON.parse(await file.text()));
    } catch {
      problem(`${file.name} is not a utility graph; verax plan utility --out makes one.`);
    }
    show();
  },
));

const keyOf = (one) => `${one.sampler}.${one.batch}.${one.passes}`;
const sizes = (one) => `batch ${one.batch}, ${one.passes} epochs`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

async function plan(signal) {
  form.check();
  const params = form.values();
  asked = params.toString();
  if (!params.has("sampler")) throw new Error("Choose at least one way of drawing batches.");
  const fresh = nothing();
  let of = 0;
  const done = () => found.plans.length + found.left.length;
  const drawn = onceAFrame(() => {
    if (signal.aborted) return;
    if (!found.ranked) status(`${done()} of ${of} plans computed`);
    show();
  });
  await stream("/api/plan/stream", params, (part) => {
    if (part.full_batch_signal !== undefined) {
      of = part.of;
      Object.assign(fresh, {best: value(part.full_batch_signal), notes: part.notes});
    }
    if (part.plan) fresh.plans.push(part.plan);
    else if (part.why_not) fresh.left.push(part.why_not);
    if (part.ranked) {
      Object.assign(fresh, {ranked: part.ranked, undominated: new Set(part.undominated)});
    }
    found = fresh;
    progress(done(), of);
    drawn();
  }, signal);
  show();
  return `${found.plans.length} plans meet the target.`;
}

function showExpected(best) {
  $("expected-head").hidden = !graph;
  $("leaks").hidden = !graph || graph.public;
  $("leaks").textContent = "The graph was made from private data: what is chosen by it is a release"
    + " without noise that no guarantee covers.";
  $("expected").textContent = graph && found.plans.length ? expectation(best) : "";
}

function expectation(best) {
  if (!best) return `No plan has the ${graph.rounds} rounds of the graph's own runs.`;
  const {plan: one, clip, rate, accuracy} = best;
  return `Best by the utility graph: ${SAMPLERS[one.sampler]}, ${sizes(one)}, clip norm`
    + ` ${short(clip)}, learning rate ${short(rate)}; expected accuracy ${percent(accuracy)}.`;
}

// The places of the plans, best first: as ranked, or before that by their signal.
function order() {
  const signal = (i) => value(found.plans[i].signal_of_run);
  const best = graph && bestByGraph(graph, found.plans);
  const bySignal = () => [...found.plans.keys()].sort((a, b) => signal(b) - signal(a));
  const ranked = found.ranked?.slice() ?? bySignal();
  if (best) ranked.unshift(...ranked.splice(ranked.indexOf(best.i), 1));
  return {ranked, best};
}

function show() {
  showFigure();
  const {ranked, best} = order();
  showExpected(best);
  fillRows("rows", (all ? ranked : ranked.slice(0, FEW)).map(planRow));
  $("all").hidden = ranked.length <= FEW;
  $("all").textContent = all ? "Show the best plans only" : `Show all ${ranked.length} plans`;
  const left = found.left.length ? [`${found.left.length} left out. ${found.left[0]}`] : [];
  const lines = [...found.notes, ...left].flatMap((text) => [text, make("br")]);
  $("left-out").replaceChildren(...lines.slice(0, -1));
  if (form.extra.plan) choose(form.extra.plan, false);
}

function planRow(i) {
  const one = found.plans[i];
  const key = keyOf(one);
  const label = SAMPLERS[one.sampler];
  const [star, beaten] = found.undominated.has(i) ? ["★ ", ", no other beats it"] : ["", ""];
  const button = make("button", {
    type: "button", class: "plain", "data-key": key,
    "aria-label": `${label}, ${sizes(one)}${beaten}: show code`,
  }, `${star}${label}`);
  button.addEventListener("click", () => choose(key, true));
  const cells = [
    one.batch, short(one.epochs), one.rounds, one.noise_multiplier,
    one.noise_to_batch.toPrecision(3), short(value(one.signal_of_run)),
    found.best ? percent(value(one.signal_of_run) / found.best) : "",
    ...(graph ? [percent(expectedOf(graph, one).accuracy)] : []),
  ];
  return row(button, cells, {class: key === form.extra.plan ? "chosen" : undefined});
}

function showFigure() {
  const {title, x, y} = FIGURES[form.get("figure")];
  const point = (one, i) => ({
    x: x.of(one), y: y.of(one), key: keyOf(one), chosen: keyOf(one) === form.extra.plan,
    open: found.ranked && !found.undominated.has(i),
    description: `${sizes(one)}, noise ${one.noise_multiplier}`,
  });
  const points = found.plans.map(point);
  const names = [...new Set(found.plans.map((one) => one.sampler))];
  const scatters = names.map((name) => ({
    name: SAMPLERS[name], colour: COLOURS[name],
    points: points.filter((_, i) => found.plans[i].sampler === name),
  }));
  const range = (label, values) => ({label, ...limits(values, {log: true})});
  draw($("figure"), {
    title, description: `${found.plans.length} plans, listed in the table below.`, scatters,
    pick: (key) => choose(key, true),
    x: range(x.label, points.map((p) => p.x)), y: range(y.label, points.map((p) => p.y)),
  });
  $("caption").textContent = "Full colour: no other plan has as much signal for as little work and"
    + " as few rounds. Choose a point, or a row of the table, for its code.";
}

let shown = "";

function choose(key, move) {
  const one = found.plans.find((plan) => keyOf(plan) === key);
  $("chosen").hidden = !one;
  if (!one) return;
  form.extra.plan = key;
  form.write();
  const group = one.group > 1 ? `, any ${one.group} records together` : "";
  $("chosen-words").textContent = `${SAMPLERS[one.sampler]}, batch ${one.batch}, ${one.rounds}`
    + ` rounds, noise multiplier ${one.noise_multiplier}: epsilon at most`
    + ` ${safe(one.epsilon, true, 6)} at delta ${one.delta} (${one.relation}${group}).`;
  $("python").textContent = one.python;
  $("command").textContent = one.command_lines.join("\n");
  if (move) {
    show();
    $("chosen-title").focus();
    $("chosen").scrollIntoView({block: "nearest"});
  }
  if (shown !== asked + key && found.ranked) showChanges(one, asked + key);
}

async function showChanges(one, what) {
  shown = what;
  const params = form.values();
  const chosen = {sampler: one.sampler, batch: one.batch, epochs: one.passes};
  for (const [name, text] of Object.entries(chosen)) params.set(name, text);
  $("changes").replaceChildren(make("li", {class: "note"}, "being computed …"));
  try {
    const list = await askJson("/api/plan/changes", params);
    const items = list.map((change) => make("li", {}, change.words));
    if (shown === what) $("changes").replaceChildren(...items);
  } catch (error) {
    $("changes").replaceChildren();
    problem(error.message);
  }
}

requests.now(plan);
