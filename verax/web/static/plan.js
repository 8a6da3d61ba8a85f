import {$, Asking, COLOURS, Form, SAMPLERS, ask, copyable, make, onceAFrame, problem, progress, status, stream, value} from "./common.js";
import {draw, limits, safe, short} from "./figure.js";
import {bestByGraph, expectedOf, utilityGraph} from "./utility.js";

const FEW = 12;
const FIELDS = [
  {name: "records", label: "Records", min: 1, max: 1e9, from: 100, to: 1e7, whole: true, value: 60000},
  {name: "epsilon", label: "Epsilon", min: 0.001, max: 100, from: 0.05, to: 20, value: 1, help: "the target"},
  {name: "delta", label: "Delta", min: 1e-30, max: 0.5, from: 1e-12, to: 0.01, value: 1e-5},
  {name: "group", more: true, label: "Records protected together", min: 1, max: 64, whole: true, value: 1},
  {name: "epochs", label: "Epochs", kind: "text", value: "1:100", help: "10, or 5,10,20, or 1:100, or 1:100:20 for 20 values"},
  {name: "batch", label: "Batch sizes", kind: "text", value: "", help: "likewise; empty for powers of two"},
  {name: "sampler", label: "How batches are drawn", kind: "many", options: SAMPLERS, value: ["poisson"]},
  {name: "clipping", more: true, label: "Clipping", kind: "choice", options: {individual: "each record", batch: "the whole batch", mixed: "clip-groups"}, value: "individual"},
  {name: "clip_groups", more: true, label: "Clip-groups", min: 1, max: 1000, whole: true, value: 1, help: "for clip-groups only"},
  {name: "relation", more: true, label: "Neighbouring relation", kind: "choice", options: {"": "each sampler's own", "add-remove": "add-remove", "zero-out": "zero-out", "replace": "replace"}, value: ""},
  {name: "rounds_at_least", more: true, label: "Rounds, at least", min: 1, max: 1e7, whole: true, value: 1},
  {name: "rounds_at_most", more: true, label: "Rounds, at most", min: 1, max: 1e7, whole: true, value: 10000000},
  {name: "noise_at_most", more: true, label: "Noise, at most", min: 0.05, max: 1e9, from: 0.3, to: 100, value: 1000000000},
  {name: "ratio_at_most", more: true, label: "Noise / batch, at most", min: 1e-9, max: 1e9, from: 1e-5, to: 1, value: 1000000000},
  {name: "rank", label: "Best first by", kind: "choice", options: {signal: "signal of the run", noise: "least noise", ratio: "least noise / batch", work: "least work", rounds: "fewest rounds"}, value: "signal"},
  {name: "figure", label: "Figure", kind: "one", local: true, options: {signal: "signal of the run against rounds", noise: "noise against epochs"}, value: "signal"},
];

let found = {plans: [], ranked: [], undominated: new Set(), left: [], notes: [], best: undefined};
let all = false;
let asked = "";
const asking = new Asking({wait: 350});
const form = new Form($("form"), FIELDS, () => {
  if (form.values().toString() === asked) show();
  else asking.later(plan);
});
copyable($("share"), () => location.href);
copyable($("copy-python"), () => $("python").textContent);
copyable($("copy-command"), () => $("command").textContent);
$("all").addEventListener("click", () => { all = !all; show(); });

// A utility graph, measured on public data (docs/utility.md): it is read in this tab and not sent anywhere.
let graph;
const upload = make("input", {type: "file", id: "graph", accept: ".json"});
$("form").append(make("div", {class: "field"},
  make("label", {for: "graph"}, "Utility graph, if you have one"), upload,
  make("span", {class: "help"}, "of verax plan utility --out; it stays in this tab, so it is not part of the link.")));
upload.addEventListener("input", async (event) => {
  event.stopPropagation();
  $("problem").hidden = true;
  graph = undefined;
  try {
    if (upload.files.length) graph = utilityGraph(JSON.parse(await upload.files[0].text()));
  } catch {
    problem(`${upload.files[0].name} is not a utility graph; verax plan utility --out makes one.`);
  }
  show();
});

const keyOf = (one) => `${one.sampler}.${one.batch}.${one.passes}`;

async function plan(signal) {
  form.check();
  const params = form.values();
  asked = params.toString();
  if (!params.getAll("sampler").length) throw new Error("Choose at least one way of drawing batches.");
  const fresh = {plans: [], ranked: undefined, undominated: new Set(), left: [], notes: [], best: undefined};
  let of = 0;
  const drawn = onceAFrame(() => {
    if (signal.aborted) return;
    if (!found.ranked) status(`${found.plans.length + found.left.length} of ${of} plans computed`);
    show();
  });
  await stream("/api/plan/stream", params, (part) => {
    if (part.full_batch_signal !== undefined) [of, fresh.best, fresh.notes] = [part.of, value(part.full_batch_signal), part.notes];
    if (part.plan) fresh.plans.push(part.plan);
    else if (part.why_not) fresh.left.push(part.why_not);
    if (part.ranked) [fresh.ranked, fresh.undominated] = [part.ranked, new Set(part.undominated)];
    found = fresh;
    const done = found.plans.length + found.left.length;
    progress(done, of);
    drawn();
  }, signal);
  show();
  return `${found.plans.length} plans meet the target.`;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function expect(best) {
  $("expected-head").hidden = !graph;
  $("leaks").hidden = !graph || graph.public;
  $("leaks").textContent = "The graph was made from private data: what is chosen by it is a release without noise that no guarantee covers.";
  if (!graph || !found.plans.length) $("expected").textContent = "";
  else if (!best) $("expected").textContent = `No plan has the ${graph.rounds} rounds of the graph's own runs.`;
  else $("expected").textContent = `Best by the utility graph: ${SAMPLERS[best.one.sampler]}, batch ${best.one.batch}, ${best.one.passes} epochs, clip norm ${short(best.clip)}, learning rate ${short(best.rate)}; expected accuracy ${percent(best.accuracy)}.`;
}

function order() {
  return found.ranked?.slice() ?? found.plans.map((_, i) => i).sort((a, b) => value(found.plans[b].signal_of_run) - value(found.plans[a].signal_of_run));
}

function show() {
  figure();
  const ranked = order();
  const best = graph && bestByGraph(graph, found.plans);
  if (best) ranked.unshift(ranked.splice(ranked.indexOf(best.i), 1)[0]);
  expect(best);
  const body = (all ? ranked : ranked.slice(0, FEW)).map((i) => {
    const one = found.plans[i];
    const star = found.undominated.has(i);
    const button = make("button", {type: "button", class: "plain", "data-key": keyOf(one)}, `${star ? "★ " : ""}${SAMPLERS[one.sampler]}`);
    button.setAttribute("aria-label", `${SAMPLERS[one.sampler]}, batch ${one.batch}, ${one.passes} epochs${star ? ", no other beats it" : ""}: show code`);
    button.addEventListener("click", () => choose(keyOf(one), true));
    const share = found.best ? `${(100 * value(one.signal_of_run) / found.best).toFixed(1)} %` : "";
    const expected = graph ? [percent(expectedOf(graph, one).accuracy)] : [];
    const row = [one.batch, short(one.epochs), one.rounds, one.noise_multiplier, one.noise_to_batch.toPrecision(3), short(value(one.signal_of_run)), share, ...expected];
    return make("tr", {class: keyOf(one) === form.extra.plan ? "chosen" : undefined}, make("th", {scope: "row"}, button), ...row.map((cell) => make("td", {}, String(cell))));
  });
  $("rows").tBodies[0].replaceChildren(...body);
  $("all").hidden = ranked.length <= FEW;
  $("all").textContent = all ? "Show the best plans only" : `Show all ${ranked.length} plans`;
  const left = found.left.length ? [`${found.left.length} left out. ${found.left[0]}`] : [];
  $("left-out").replaceChildren(...[...found.notes, ...left].flatMap((text, i) => (i ? [make("br"), text] : [text])));
  if (form.extra.plan) choose(form.extra.plan, false);
}

function figure() {
  const noise = form.get("figure") === "noise";
  const names = [...new Set(found.plans.map((one) => one.sampler))];
  const scatters = names.map((name) => ({
    name: SAMPLERS[name], colour: COLOURS[name],
    points: found.plans.map((one, i) => ({one, i})).filter(({one}) => one.sampler === name).map(({one, i}) => ({
      x: noise ? one.epochs : one.rounds, y: noise ? one.noise_multiplier : value(one.signal_of_run), key: keyOf(one),
      open: found.ranked && !found.undominated.has(i), chosen: keyOf(one) === form.extra.plan,
      told: `batch ${one.batch}, ${one.passes} epochs, noise ${one.noise_multiplier}`,
    })),
  }));
  const all = scatters.flatMap((series) => series.points);
  draw($("figure"), {
    title: noise ? "Smallest proved noise against epochs" : "Signal to noise of the run against rounds",
    told: `${found.plans.length} plans, listed in the table below.`, scatters, pick: (key) => choose(key, true),
    x: {label: noise ? "epochs" : "rounds", ...limits(all.map((p) => p.x), {log: true})},
    y: {label: noise ? "noise multiplier" : "signal of the run", ...limits(all.map((p) => p.y), {log: true})},
  });
  $("caption").textContent = "Full colour: no other plan has as much signal for as little work and as few rounds. Choose a point, or a row of the table, for its code.";
}

let shown = "";

function choose(key, move) {
  const one = found.plans.find((plan) => keyOf(plan) === key);
  $("chosen").hidden = !one;
  if (!one) return;
  form.extra.plan = key;
  form.write();
  $("chosen-words").textContent = `${SAMPLERS[one.sampler]}, batch ${one.batch}, ${one.rounds} rounds, noise multiplier ${one.noise_multiplier}: epsilon at most ${safe(one.epsilon, true, 6)} at delta ${one.delta} (${one.relation}${one.group > 1 ? `, any ${one.group} records together` : ""}).`;
  $("python").textContent = one.python;
  $("command").textContent = one.command_lines.join("\n");
  if (move) {
    show();
    $("chosen-title").focus();
    $("chosen").scrollIntoView({block: "nearest"});
  }
  if (shown !== asked + key && found.ranked) changes(one, asked + key);
}

async function changes(one, what) {
  shown = what;
  const params = form.values();
  params.delete("sampler");
  for (const [name, text] of [["sampler", one.sampler], ["batch", one.batch], ["epochs", one.passes]]) params.set(name, text);
  $("changes").replaceChildren(make("li", {class: "note"}, "being computed …"));
  try {
    const list = await (await ask("/api/plan/changes", params)).json();
    if (shown === what) $("changes").replaceChildren(...list.map((change) => make("li", {}, change.words)));
  } catch (error) {
    $("changes").replaceChildren();
    problem(error.message);
  }
}

asking.now(plan);
