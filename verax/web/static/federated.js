import {$, Asking, Form, copyable, inWords, make, onceAFrame, progress, status, stream, value} from "./common.js";
import {Parts, against, cells, deltaFigure, evidence, tradeoffFigure} from "./curves.js";

const NAMES = {
  CS: "Records dealt out anew each round (CS)",
  participation: "Random participation",
  WCS: "Participation is visible (WCS)",
  OLS: "Always takes part (OLS)",
};
const OBSERVERS = {
  public: "The public, which sees the models",
  client: "A curious client",
  network: "The network, which sees who sends",
  server: "The server, which sees every message",
};
const COLOURS = {CS: 2, participation: 0, WCS: 1, OLS: 8};

const FIELDS = [
  {name: "client_rate", label: "Client rate", min: 1e-6, max: 1, from: 0.001, to: 1, value: 0.1, help: "probability that the client takes part in a round"},
  {name: "record_rate", label: "Record rate", min: 1e-6, max: 1, from: 0.001, to: 1, value: 0.1, help: "probability that it then uses a record"},
  {name: "records", label: "Other records", min: 0, max: 1e6, from: 1, to: 1e5, whole: true, value: 100, help: "of the client, besides the protected one"},
  {name: "rounds", label: "Rounds", min: 1, max: 1e6, from: 1, to: 1e5, whole: true, value: 100},
  {name: "noise_multiplier", label: "Noise multiplier", min: 0.05, max: 1000, from: 0.3, to: 12, value: 1, help: "in the sum of all messages / clip norm of a record"},
  {name: "delta", label: "Delta", min: 1e-30, max: 0.5, from: 1e-12, to: 0.01, value: 1e-5},
  {name: "senders", more: true, label: "Clients that send noise", min: 1, max: 1e6, from: 1, to: 1e5, whole: true, value: 100, help: "surely and honestly, in every round, where clients add it"},
  {name: "always_send", more: true, label: "A client that stays away", kind: "choice", options: {true: "sends noise all the same", false: "sends nothing"}, value: "true"},
  {name: "colluding", more: true, label: "Colluding clients", min: 1, max: 1e6, from: 1, to: 1e5, whole: true, value: 1, help: "of those, whose noise a curious client knows, its own included"},
  {name: "figure", label: "Figure", kind: "one", options: {"noise": "epsilon against noise", "rounds": "epsilon against rounds", "client-rate": "epsilon against the client rate", "delta": "delta against epsilon", "tradeoff": "what an attacker can reach"}, value: "noise"},
];
const AXES = {
  "noise": {title: "Epsilon against noise", x: "noise multiplier", field: "noise_multiplier"},
  "rounds": {title: "Epsilon against rounds", x: "rounds", field: "rounds"},
  "client-rate": {title: "Epsilon against the client rate", x: "client rate", field: "client_rate"},
};

let parts = new Parts([]);
const asking = new Asking();
const form = new Form($("form"), FIELDS, () => asking.later(federated));
copyable($("share"), () => location.href);

async function federated(signal) {
  form.check();
  const fresh = new Parts(Object.keys(NAMES));
  fresh.observers = new Map();
  const drawn = onceAFrame(() => { if (!signal.aborted) show(parts); });
  await stream("/api/federated/stream", form.values(), (part) => {
    fresh.add(part);
    if (part.kind === "observer") fresh.observers.set(`${part.observer} ${part.trusted}`, part);
    parts = fresh;
    drawn();
  }, signal);
  show(parts);
  return "Done.";
}

function show(now) {
  const body = now.names.map((name) => make("tr", {"data-sampler": name}, make("th", {scope: "row"}, NAMES[name]), ...cells(now.rows.get(name))));
  $("rows").tBodies[0].replaceChildren(...body);
  progress(now.done, now.of);
  if (now.done < now.of) status(`${now.done} of ${now.of} computed`);
  const look = {names: NAMES, colours: COLOURS, delta: Number(form.get("delta"))};
  const figure = form.get("figure");
  if (figure === "delta") deltaFigure(now, look);
  else if (figure === "tradeoff") tradeoffFigure(now, look);
  else against(now, {...look, ...AXES[figure], now: Number(form.get(AXES[figure].field)), log: true});
  if (figure !== "tradeoff") $("words").textContent = between(now);
  evidence(now, NAMES);
  observers(now);
}

function observers(now) {
  const cell = (part) => make("td", {"data-trusted": part?.trusted}, part ? (part.epsilon ? inWords(part.epsilon.shown.upper) : part.why_not) : "…");
  const both = Object.keys(OBSERVERS).map((name) => [name, [true, false].map((trusted) => now.observers?.get(`${name} ${trusted}`))]);
  $("observers").tBodies[0].replaceChildren(...both.map(([name, parts]) => make("tr", {"data-observer": name}, make("th", {scope: "row"}, OBSERVERS[name]), ...parts.map(cell))));
  $("sees").replaceChildren(...both.flatMap(([name, parts]) => [make("dt", {}, OBSERVERS[name]), ...parts.filter(Boolean).map((part) => make("dd", {}, part.words ?? ""))]));
}

function between(now) {
  const [least, here, most] = ["CS", "participation", "WCS"].map((name) => now.rows.get(name)?.epsilon);
  if (!least || !here || !most) return "";
  const gap = value(most.upper) - value(least.upper);
  const share = gap > 0 ? Math.round(100 * (value(here.upper) - value(least.upper)) / gap) : 100;
  return `Random participation costs at most ${here.shown.upper}: between ${least.shown.upper}, had the records been dealt out anew each round, and ${most.shown.upper}, had everybody seen who takes part (${share} % of the way).`;
}

asking.now(federated);
