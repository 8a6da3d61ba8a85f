import {$, copyable, fileField, fillRows, make, problem, row, status, table} from "./dom.js";
import {draw, limits, safe, short} from "./figure.js";
import {Form, fields} from "./form.js";
import {Requests, answered, ask, askJson, inWords, stream, value} from "./request.js";

const LOOK = 3000; // milliseconds between looks at the folder

let file; // a ledger that was opened from this computer; it stays in this tab
let last;
let unwatched = {}; // ledgers that are shown and not followed, and when each was last written
const requests = new Requests({wait: 200});
const form = new Form($("form"), [
  {
    name: "name", label: "Ledger", kind: "several", value: "",
    together: "Together with other runs on the same data",
    help: "in the folder that the server was started with",
  },
  ...fields("delta", "group"),
], () => {
  if (form.get("name")) file = undefined;
  requests.later(open);
});
copyable($("share"), () => location.href);
$("form").append(fileField(
  "file", "Or open one from this computer",
  "It is checked and forgotten by the server, so it has no link to share.",
  ".ledger", (opened) => {
    file = opened;
    form.choose("name", [""]);
    form.write();
    requests.now(open);
  },
));

// What is in the folder now, and whether a run that was not followed any more goes on.
async function look() {
  const {folder, runs, written} = await askJson("/api/runs", "");
  form.offer("name", runs);
  const some = runs.length
    ? "in the folder that the server was started with"
    : "there is no .ledger in the server's folder yet";
  const none = "the server was started without a folder: verax serve --runs FOLDER";
  $("name-help").textContent = folder ? some : none;
  const changed = ([name, time]) => time !== undefined && time !== written[name];
  const goesOn = Object.entries(unwatched).some(changed);
  for (const name of Object.keys(unwatched)) unwatched[name] ??= written[name];
  if (goesOn) requests.now(open);
}

function keepLooking() {
  setTimeout(async () => {
    // the next request says what is wrong, if it lasts
    if (!document.hidden) await look().catch(() => {});
    keepLooking();
  }, LOOK);
}

async function open(signal) {
  form.check();
  unwatched = {};
  const params = form.values();
  const names = form.all("name");
  if (file) {
    params.delete("name");
    show(await askJson("/api/run", params, {method: "POST", body: file, signal}));
    return "Read from this computer.";
  }
  if (!names[0]) {
    $("run").hidden = $("together").hidden = true;
    return "Choose a ledger, or open one.";
  }
  if (names.length > 1) {
    showTogether(await askJson("/api/run/together", params, {signal}));
    unwatched = Object.fromEntries(names.map((name) => [name, undefined]));
    return `${names.length} runs on the same data, together.`;
  }
  return watch(names[0], params, signal);
}

async function watch(name, params, signal) {
  let quiet;
  last = undefined;
  do {
    await stream("/api/run/stream", params, (part) => {
      if (part.kind === "run") show(part);
      if (part.kind === "quiet") quiet = part.written;
      else if (!part.over) status("The run is not over; watching its ledger …");
    }, signal).catch((error) => {
      if (!error.message.startsWith("stopped after")) throw error;
    });
  } while (last && !last.over && quiet === undefined && !signal.aborted);
  if (quiet === undefined) return "The run is over.";
  unwatched = {[name]: quiet};
  const since = new Date(1000 * quiet).toLocaleString();
  showFacts(last, `broke off or pauses: nothing was written since ${since}`);
  return `Not watched: nothing was written since ${since}, and no process that the server can see`
    + " holds the ledger. If the run goes on, so does this page.";
}

const both = (e, why) => (e ? `${inWords(e.shown.lower)} to ${inWords(e.shown.upper)}` : why);

// The facts that one run and several have in common: what is proved, and who is protected.
function costFacts(answer, unit, ends, end) {
  const {epsilon, spent, why_not: why, delta, group, relation} = answer;
  const who = group === 1 ? unit : `${group} ${unit}s`;
  return [
    ["Epsilon, whole run", `${both(epsilon, why)} at delta ${delta}: holds however the ${ends}`
      + " chosen, if by looking at what was released", "epsilon"],
    ["Epsilon, spent so far", `${both(spent, why)}: holds if neither data nor results had a say in`
      + ` when ${end} ends`, "spent"],
    ["Protected", `any ${who}, ${relation}`],
  ];
}

function fillFacts(id, facts) {
  fillRows(id, facts.map(([name, text, key]) => row(name, [text], {"data-fact": key})));
}

function showTogether(answer) {
  answered("new");
  $("together").hidden = false;
  $("run").hidden = true;
  $("together-warning").hidden = !answer.insecure_seed;
  const [whole, ...others] = costFacts(answer, "record", "ends were", "a run");
  fillFacts("together-facts", [["Epsilon, all runs", ...whole.slice(1)], ...others]);
  fillRows("together-runs", answer.runs.map((run) => row(run.name, [
    `${run.released} of ${run.declared}`,
    run.over ? "over" : "not over, or broke off",
    both(run.epsilon, run.why_not),
  ])));
  showDownloads("together-downloads", "together-");
}

function show(run) {
  last = run;
  answered("new");
  $("run").hidden = false;
  $("together").hidden = true;
  $("run-title").textContent = run.name;
  $("warning").hidden = !run.insecure_seed;
  $("warning").textContent = "The randomness of this run came from a seed that somebody chose: it"
    + " is not private.";
  $("rounds").max = run.declared;
  $("rounds").value = run.released;
  $("rounds-words").textContent = `${run.released} of ${run.declared}`;
  showFacts(run);
  showSpent(run);
  showDownloads("downloads", "");
  showLog(run);
  showDiagnostics(run);
}

function signalWords({each, round, rounds}) {
  if (round === null) {
    return `at most ${short(value(each))} for each record of a batch; the ledger does not say how`
      + " many there are";
  }
  const average = short(value(round) * Math.sqrt(rounds));
  return `at most ${short(value(round))} in one round, ${average} in the average of all, if all`
    + " gradients have full length and agree";
}

function showFacts(run, state = "not over") {
  const {ended, clip_norm: norms} = run;
  const range = `${Math.min(...norms)} to ${Math.max(...norms)}, by round`;
  const reason = ended?.reason ? `: ${ended.reason}` : "";
  const [whole, spent, protectedUnits] = costFacts(run, run.unit, "end was", "the run");
  fillFacts("facts", [
    whole,
    spent,
    ["State", run.over ? `${ended.how}${reason}` : state],
    ...(ended?.private
      ? [["Not covered", "that it stopped there shows something of the data, without noise"]] : []),
    protectedUnits,
    ["Noise multiplier", run.noise_multiplier.join(", then ")],
    ["Clip norm", norms.length > 8 ? range : norms.join(", then ")],
    ["Signal to noise, by plan", run.signal.map(signalWords).join("; then ")],
    ["Mechanism", run.mechanism.join("; then ")],
    ["Resumed", run.resumed ? `${run.resumed} times` : "never"],
    ["Begun", `${run.begun}, with verax ${run.verax}`],
    ["Run", run.run],
    ["Hash of the last line", run.head],
  ]);
}

function showSpent({points: spent, released, declared}) {
  if (!spent.length) return;
  const point = ({rounds, epsilon}) => (
    {x: rounds, lower: value(epsilon.lower), upper: value(epsilon.upper)});
  const points = spent.map(point);
  const title = "Epsilon spent against rounds";
  draw($("figure"), {
    title, description: `After ${released} of ${declared} rounds.`, now: released,
    bands: [{name: "epsilon of a run declared to end there", colour: 0, points}],
    x: {label: "rounds", ...limits([...points.map((p) => p.x), 0])},
    y: {label: "epsilon", ...limits(points.flatMap((p) => [p.lower, p.upper]))},
  });
  $("caption").textContent = "Solid: at most. Dashed: at least. Dotted: rounds released so far.";
  const rows = points.map((p) => [p.x, safe(p.lower, false), safe(p.upper, true)]);
  $("numbers").replaceChildren(table(title, ["Rounds", "At least", "At most"], rows));
}

const FORMATS = {html: "page", json: "JSON", txt: "text"};
let linked = "";

function showDownloads(place, prefix) {
  const now = `${prefix} ${Boolean(file)} ${form.values()}`;
  if (now === linked) return; // links that are replaced under a click lose it
  linked = now;
  const links = Object.entries(FORMATS).map(([format, word]) => {
    const params = form.values();
    params.set("format", format);
    const link = make("a", {
      href: `/api/run/statement?${params}`, download: `statement.${format}`,
      id: `${prefix}download-${format}`,
    }, `Download as ${word}`);
    if (file) link.addEventListener("click", (event) => {
      event.preventDefault();
      save(format, params);
    });
    return link;
  });
  $(place).replaceChildren(...links.flatMap((link) => [link, " "]));
}

async function save(format, params) {
  try {
    params.delete("name");
    const answer = await ask("/api/run/statement", params, {method: "POST", body: file});
    const href = URL.createObjectURL(await answer.blob());
    make("a", {href, download: `statement.${format}`}).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  } catch (error) {
    problem(error.message);
  }
}

const LOG_WORDS = {
  some: "From the log that the run itself published next to its ledger. verax has not checked these"
    + " numbers, and the statement does not cover them: scores on public data cost nothing, but if"
    + " private data were used they are a release of their own.",
  none: "Nothing. Scores of the model on public data cost no privacy: fit(...,"
    + " log=PublicLog(\"run.log\", score)) writes them next to run.ledger, and so may a run of your"
    + " own, as JSON lines with a round each.",
};
const DIAGNOSTICS_WORDS = {
  some: "NOT covered by the guarantee: computed from private data without noise, for those who may"
    + " see the data. Do not release them, and do not choose by them what to release.",
  none: "None were kept. A run asked for them, by fit(..., diagnostics=\"run.private\") with"
    + " run.ledger next to it, keeps them in a file that only its owner can read. They are computed"
    + " from private data and nothing protects them.",
  hidden: "Not shown. They are computed from private data, and nothing protects them: to publish"
    + " them would release more than the epsilon above. A ledger holds only what is public. If the"
    + " run kept them for the owners of the data, verax serve --diagnostics shows them.",
};

function showLog({log}) {
  $("log-words").textContent = log.length ? LOG_WORDS.some : LOG_WORDS.none;
  showCharts($("log"), log.map((series) => ({title: series.name, lines: [series]})), log);
}

function showDiagnostics({diagnostics}) {
  const all = diagnostics ?? [];
  const which = diagnostics === null ? "hidden" : all.length ? "some" : "none";
  $("diagnostics-words").textContent = DIAGNOSTICS_WORDS[which];
  $("diagnostics-words").classList.toggle("problem", all.length > 0);
  const by = Object.fromEntries(all.map((series) => [series.name, series]));
  const charts = [
    {title: "Loss of the batch", lines: [by.loss]},
    {title: "Accuracy on the batch", lines: [by.accuracy], most: 1},
    {
      title: "Gradient norms against the clip norm", lines: [by.norm_50, by.clip_norm],
      range: [by.norm_10, by.norm_90],
    },
    {title: "Share of gradients clipped", lines: [by.clipped], most: 1},
    {
      title: "Signal to noise: length of the clipped sum / length of the noise",
      lines: [by.signal_to_noise],
    },
  ];
  showCharts($("diagnostics"), charts.filter(({lines}) => lines[0]), all);
}

const MOST_POINTS = 400;
const spaced = (name) => name.replaceAll("_", " ");

// Of many points as many as a figure can show, the last one among them.
function thin(points) {
  const every = Math.ceil(points.length / MOST_POINTS);
  const kept = points.filter((_, i) => (points.length - 1 - i) % every === 0);
  return kept.map(([x, y]) => ({x, lower: y, upper: y}));
}

// A line for each series; the first becomes a band if a range is known, and its median a line.
function chartBands(lines, range) {
  const bands = lines.filter(Boolean).map(({name, points}, i) => (
    {name: spaced(name), colour: i, dots: false, points: thin(points)}));
  if (!range?.every(Boolean)) return bands;
  const [low, high] = range.map((series) => new Map(series.points));
  const [median, ...others] = bands;
  const widen = ({x, lower, upper}) => (
    {x, lower: low.get(x) ?? lower, upper: high.get(x) ?? upper});
  const band = {...median, name: "10 % to 90 % of gradients", points: median.points.map(widen)};
  return [band, ...others, {...median, name: "median", colour: 2}];
}

function chart({title, lines, range, most}) {
  const bands = chartBands(lines, range);
  const points = bands.flatMap((band) => band.points);
  const latest = lines[0].points.at(-1);
  const heights = limits(points.flatMap((p) => [p.lower, p.upper]));
  return {
    title, description: `In round ${latest[0]}: ${short(latest[1])}`, bands,
    legend: bands.length > 1,
    x: {label: "rounds", min: 0, max: Math.max(last.declared, ...points.map((p) => p.x), 1)},
    y: {
      label: lines.length > 1 ? "norm" : spaced(lines[0].name), ...heights,
      ...(most ? {max: most} : {}),
    },
  };
}

function showCharts(place, charts, all) {
  const spots = charts.map(() => make("div", {class: "figure"}));
  const figures = charts.map(({title}, i) => (
    make("figure", {}, make("figcaption", {}, title), spots[i])));
  const rows = all.map(({name, points}) => {
    const [round, latest] = points.at(-1);
    return [spaced(name), round, short(latest)];
  });
  const label = "Latest numbers";
  const scroll = {class: "scroll", tabindex: 0, role: "region", "aria-label": label};
  const numbers = make("div", scroll, table(label, ["What", "Round", "Value"], rows));
  const drawn = make("div", {class: "charts"}, ...figures);
  place.replaceChildren(...(all.length ? [numbers] : []), drawn);
  charts.forEach((one, i) => draw(spots[i], chart(one))); // now that they have a width
}

look().catch((error) => problem(error.message));
keepLooking();
requests.now(open);
