import {Comparison} from "./comparison.js";
import {$, copyable, fillRows, make, row} from "./dom.js";
import {Form, figureField, fields, moreFields} from "./form.js";
import {Requests, inWords, value} from "./request.js";

const MODELS = {
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

const requests = new Requests();
const form = new Form($("form"), [
  ...fields("client_rate", "record_rate", "records", "rounds", "noise_multiplier", "delta"),
  ...moreFields("senders", "always_send", "colluding"),
  figureField("noise"),
], () => requests.later(federated));
const comparison = new Comparison({
  path: "/api/federated/stream", labels: MODELS,
  colours: {CS: 2, participation: 0, WCS: 1, OLS: 8},
  axes: {noise: "noise_multiplier", rounds: "rounds", "client-rate": "client_rate"},
  shown: (parts, figure) => {
    if (figure !== "tradeoff") $("words").textContent = position(parts.rows);
    showObservers(parts.observers);
  },
});
copyable($("share"), () => location.href);

async function federated(signal) {
  await comparison.ask(form, Object.keys(MODELS), signal);
  return "Done.";
}

function showObservers(observers) {
  const cell = (part) => {
    const words = part?.epsilon ? inWords(part.epsilon.shown.upper) : part?.why_not ?? "…";
    return make("td", {"data-trusted": part?.trusted}, words);
  };
  const found = Object.entries(OBSERVERS).map(([name, label]) => {
    const both = [true, false].map((trusted) => observers.get(`${name} ${trusted}`));
    return {name, label, both};
  });
  fillRows("observers", found.map(({name, label, both}) => (
    row(label, both.map(cell), {"data-observer": name}))));
  $("sees").replaceChildren(...found.flatMap(({label, both}) => {
    const words = both.filter(Boolean).map((part) => make("dd", {}, part.words ?? ""));
    return [make("dt", {}, label), ...words];
  }));
}

// Where random participation lies between records dealt out anew and visible participation.
function position(rows) {
  const [least, here, most] = ["CS", "participation", "WCS"].map((name) => rows.get(name)?.epsilon);
  if (!least || !here || !most) return "";
  const gap = value(most.upper) - value(least.upper);
  const above = value(here.upper) - value(least.upper);
  const share = gap > 0 ? Math.round(100 * above / gap) : 100;
  return `Random participation costs at most ${here.shown.upper}: between ${least.shown.upper}, had`
    + ` the records been dealt out anew each round, and ${most.shown.upper}, had everybody seen who`
    + ` takes part (${share} % of the way).`;
}

requests.now(federated);
