import {$, Asking, Form, answered, ask, copyable, inWords, make, problem, status, stream, table, value} from "./common.js";
import {draw, limits, safe, short} from "./figure.js";

const FIELDS = [
  {name: "name", label: "Ledger", kind: "several", together: "Together with other runs on the same data", value: "", help: "in the folder that the server was started with"},
  {name: "delta", label: "Delta", min: 1e-30, max: 0.5, from: 1e-12, to: 0.01, value: 1e-5},
  {name: "group", label: "Records protected together", min: 1, max: 64, whole: true, value: 1},
];
const LOOK = 3000; // milliseconds between looks at the folder

let file; // a ledger that was opened from this computer; it stays in this tab
let last;
let still = {}; // ledgers that are shown and not followed, and when each was last written
const asking = new Asking({wait: 200});
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
  form.choose("name", [""]);
  form.write();
  asking.now(open);
});

// What is in the folder now, and whether a run that was not followed any more goes on.
async function look() {
  const {folder, runs, written} = await (await ask("/api/runs", "")).json();
  form.offer("name", runs);
  if (!folder) $("name-help").textContent = "the server was started without a folder: verax serve --runs FOLDER";
  else $("name-help").textContent = runs.length ? "in the folder that the server was started with" : "there is no .ledger in the server's folder yet";
  const changed = Object.keys(still).some((name) => still[name] !== undefined && still[name] !== written[name]);
  for (const name of Object.keys(still)) still[name] ??= written[name];
  if (changed) asking.now(open);
}

function keepLooking() {
  setTimeout(async () => {
    if (!document.hidden) await look().catch(() => {}); // the next question says what is wrong, if it lasts
    keepLooking();
  }, LOOK);
}

async function open(signal) {
  form.check();
  still = {};
  const params = form.values();
  const names = form.all("name");
  if (file) {
    params.delete("name");
    show(await (await ask("/api/run", params, {method: "POST", body: file, signal})).json());
    return "Read from this computer.";
  }
  if (!names[0]) {
    $("run").hidden = $("together").hidden = true;
    return "Choose a ledger, or open one.";
  }
  if (names.length > 1) {
    together(await (await ask("/api/run/together", params, {signal})).json());
    still = Object.fromEntries(names.map((name) => [name, undefined]));
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
  still = {[name]: quiet};
  const since = new Date(1000 * quiet).toLocaleString();
  facts(last, `broke off or pauses: nothing was written since ${since}`);
  return `Not watched: nothing was written since ${since}, and no process that the server can see holds the ledger. If the run goes on, so does this page.`;
}

const both = (e, why) => (e ? `${inWords(e.shown.lower)} to ${inWords(e.shown.upper)}` : why);

function together(all) {
  answered("new");
  $("together").hidden = false;
  $("run").hidden = true;
  $("together-warning").hidden = !all.insecure_seed;
  const rows = [
    ["Epsilon, all runs", `${both(all.epsilon, all.why_not)} at delta ${all.delta}: holds however the ends were chosen, if by looking at what was released`, "epsilon"],
    ["Epsilon, spent so far", `${both(all.spent, all.why_not)}: holds if neither data nor results had a say in when a run ends`, "spent"],
    ["Protected", `any ${all.group === 1 ? "record" : `${all.group} records`}, ${all.relation}`],
  ];
  $("together-facts").tBodies[0].replaceChildren(...rows.map(factRow));
  $("together-runs").tBodies[0].replaceChildren(...all.runs.map((run) => make("tr", {}, make("th", {scope: "row"}, run.name),
    ...[`${run.released} of ${run.declared}`, run.over ? "over" : "not over, or broke off", both(run.epsilon, run.why_not)].map((text) => make("td", {}, text)))));
  downloads("together-downloads", "together-");
}

function factRow([name, text, key]) {
  return make("tr", {"data-fact": key}, make("th", {scope: "row"}, name), make("td", {}, String(text)));
}

function show(run) {
  last = run;
  answered("new");
  $("run").hidden = false;
  $("together").hidden = true;
  $("run-title").textContent = run.name;
  $("warning").hidden = !run.insecure_seed;
  $("warning").textContent = "The randomness of this run came from a seed that somebody chose: it is not private.";
  $("rounds").max = run.declared;
  $("rounds").value = run.released;
  $("rounds-words").textContent = `${run.released} of ${run.declared}`;
  facts(run);
  figure(run);
  downloads("downloads", "");
  log(run);
  diagnostics(run);
}

function signal({each, round, rounds}) {
  if (round === null) return `at most ${short(value(each))} for each record of a batch; the ledger does not say how many there are`;
  return `at most ${short(value(round))} in one round, ${short(value(round) * Math.sqrt(rounds))} in the average of all, if all gradients have full length and agree`;
}

function facts(run, state = "not over") {
  const rows = [
    ["Epsilon, whole run", `${both(run.epsilon, run.why_not)} at delta ${run.delta}: holds however the end was chosen, if by looking at what was released`, "epsilon"],
    ["Epsilon, spent so far", `${both(run.spent, run.why_not)}: holds if neither data nor results had a say in when the run ends`, "spent"],
    ["State", run.over ? `${run.ended.how}${run.ended.reason ? `: ${run.ended.reason}` : ""}` : state],
    ["Protected", `any ${run.group === 1 ? run.unit : `${run.group} ${run.unit}s`}, ${run.relation}`],
    ["Noise multiplier", run.noise_multiplier.join(", then ")],
    ["Clip norm", run.clip_norm.length > 8 ? `${Math.min(...run.clip_norm)} to ${Math.max(...run.clip_norm)}, by round` : run.clip_norm.join(", then ")],
    ["Signal to noise, by plan", run.signal.map(signal).join("; then ")],
    ["Mechanism", run.mechanism.join("; then ")],
    ["Resumed", run.resumed ? `${run.resumed} times` : "never"],
    ["Begun", `${run.begun}, with verax ${run.verax}`],
    ["Run", run.run],
    ["Hash of the last line", run.head],
  ];
  if (run.ended?.private) rows.splice(3, 0, ["Not covered", "that it stopped there shows something of the data, without noise"]);
  $("facts").tBodies[0].replaceChildren(...rows.map(factRow));
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
let linked = "";

function downloads(place, prefix) {
  const now = `${prefix} ${Boolean(file)} ${form.values()}`;
  if (now === linked) return; // links that are replaced under a click lose it
  linked = now;
  const links = Object.entries(KINDS).map(([kind, word]) => {
    const params = form.values();
    params.set("format", kind);
    const link = make("a", {href: `/api/run/statement?${params}`, download: `statement.${kind}`, id: `${prefix}download-${kind}`}, `Download as ${word}`);
    if (file) link.addEventListener("click", (event) => {
      event.preventDefault();
      save(kind, params);
    });
    return link;
  });
  $(place).replaceChildren(...links.flatMap((link) => [link, " "]));
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

const WORDS = {
  log: {
    some: "From the log that the run itself published next to its ledger. verax has not checked these numbers, and the statement does not cover them: scores on public data cost nothing, but if private data were used they are a release of their own.",
    none: "Nothing. Scores of the model on public data cost no privacy: fit(..., log=PublicLog(\"run.log\", score)) writes them next to run.ledger, and so may a run of your own, as JSON lines with a round each.",
  },
  diagnostics: {
    some: "NOT covered by the guarantee: computed from private data without noise, for those who may see the data. Do not release them, and do not choose by them what to release.",
    none: "None were kept. A run asked for them, by fit(..., diagnostics=\"run.private\") with run.ledger next to it, keeps them in a file that only its owner can read. They are computed from private data and nothing protects them.",
    hidden: "Not shown. They are computed from private data, and nothing protects them: to publish them would release more than the epsilon above. A ledger holds only what is public. If the run kept them for the owners of the data, verax serve --diagnostics shows them.",
  },
};

function log(run) {
  const shown = run.log.length > 0;
  $("log-words").textContent = shown ? WORDS.log.some : WORDS.log.none;
  charts($("log"), run.log.map((series) => ({title: series.name, lines: [series]})), run.log);
}

function diagnostics(run) {
  const all = run.diagnostics ?? [];
  const words = $("diagnostics-words");
  words.textContent = WORDS.diagnostics[run.diagnostics === null ? "hidden" : all.length ? "some" : "none"];
  words.classList.toggle("problem", all.length > 0);
  const by = Object.fromEntries(all.map((series) => [series.name, series]));
  const own = [
    {title: "Loss of the batch", lines: [by.loss]},
    {title: "Accuracy on the batch", lines: [by.accuracy], most: 1},
    {title: "Gradient norms against the clip norm", lines: [by.norm_50, by.clip_norm], range: [by.norm_10, by.norm_90]},
    {title: "Share of gradients clipped", lines: [by.clipped], most: 1},
    {title: "Signal to noise: length of the clipped sum / length of the noise", lines: [by.signal_to_noise]},
  ];
  charts($("diagnostics"), own.filter(({lines}) => lines[0]), all);
}

const MOST_POINTS = 400;

// Of many points as many as a figure can show, the last one among them.
function thin(points) {
  const every = Math.ceil(points.length / MOST_POINTS);
  return points.filter((_, i) => (points.length - 1 - i) % every === 0).map(([x, y]) => ({x, lower: y, upper: y}));
}

function charts(place, wanted, all) {
  const drawings = wanted.map(({title, lines, range, most}) => {
    const spot = make("div", {class: "figure"});
    const bands = lines.filter(Boolean).map((series, i) => ({name: series.name.replaceAll("_", " "), colour: i, dots: false, points: thin(series.points)}));
    if (range?.every(Boolean)) {
      const [low, high] = range.map((series) => new Map(series.points));
      for (const p of bands[0].points) [p.lower, p.upper] = [low.get(p.x) ?? p.lower, high.get(p.x) ?? p.upper];
      bands.push({...bands[0], name: "median", colour: 2, points: thin(lines[0].points)});
      bands[0].name = "10 % to 90 % of gradients";
    }
    const points = bands.flatMap((band) => band.points);
    const latest = lines[0].points.at(-1);
    const what = {
      title, told: `In round ${latest[0]}: ${short(latest[1])}`, bands, legend: bands.length > 1,
      x: {label: "rounds", min: 0, max: Math.max(last.declared, ...points.map((p) => p.x), 1)},
      y: {label: lines.length > 1 ? "norm" : lines[0].name.replaceAll("_", " "), ...limits(points.flatMap((p) => [p.lower, p.upper])), ...(most ? {max: most} : {})},
    };
    return {figure: make("figure", {}, make("figcaption", {}, title), spot), paint: () => draw(spot, what)};
  });
  const rows = all.map(({name, points}) => [name.replaceAll("_", " "), points.at(-1)[0], short(points.at(-1)[1])]);
  const latest = all.length ? [make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Latest numbers"}, table("Latest numbers", ["What", "Round", "Value"], rows))] : [];
  place.replaceChildren(...latest, make("div", {class: "charts"}, ...drawings.map(({figure}) => figure)));
  for (const {paint} of drawings) paint(); // now that they have a width
}

look().catch((error) => problem(error.message));
keepLooking();
asking.now(open);
