// Brackets of several mechanisms side by side, and the figures that Compare and Federated share.

import {draw, limits, safe, short} from "./figure.js";
import {$, fillRows, make, onceAFrame, progress, row, status, table} from "./dom.js";
import {inWords, stream, value} from "./request.js";

const percent = (share) => `${Math.round(share * 100)} %`;

// The parts of one answer: rows by name, points by name and place, curves by name, observers.
class Parts {
  constructor(names) {
    this.names = names;
    this.rows = new Map();
    this.points = new Map(names.map((name) => [name, new Map()]));
    this.curves = new Map();
    this.observers = new Map();
    this.of = 0;
    this.done = 0;
  }

  add(part) {
    const {kind, sampler, provisional} = part;
    if (kind === "begin") this.of = part.of;
    else if (!provisional) this.done += 1;
    if (kind === "row" && !(provisional && this.rows.has(sampler))) this.rows.set(sampler, part);
    if (kind === "point" && part.epsilon) this.points.get(sampler)?.set(part.x, part.epsilon);
    if (kind === "curve" && part.deltas?.length) this.curves.set(sampler, part);
    if (kind === "observer") this.observers.set(`${part.observer} ${part.trusted}`, part);
  }
}

// labels and colours are by name; axes say by figure which field of the form is across; more() adds
// cells to a row; shown() is called with the parts and the figure after they are drawn.
export class Comparison {
  constructor({path, labels, colours, axes, more = () => [], shown = () => {}}) {
    Object.assign(this, {path, labels, colours, axes, more, shown});
    this.parts = new Parts([]);
  }

  async ask(form, names, signal) {
    form.check();
    const fresh = new Parts(names);
    const show = onceAFrame(() => { if (!signal.aborted) this.show(form); });
    await stream(this.path, form.values(), (part) => {
      fresh.add(part);
      this.parts = fresh;
      if (part.kind === "row") this.showRows();
      show();
    }, signal);
    this.show(form);
    return fresh;
  }

  show(form) {
    const {names, done, of, rows} = this.parts;
    this.showRows();
    progress(done, of);
    if (done < of) status(`${done} of ${of} computed`);
    $("words").textContent = "";
    const figure = form.get("figure");
    if (figure === "delta") this.drawDelta(Number(form.get("delta")));
    else if (figure === "tradeoff") this.drawTradeoff();
    else this.drawAlong(this.axes[figure], Number(form.get(this.axes[figure])));
    const proved = names.filter((name) => rows.get(name)?.epsilon);
    const evidence = proved.flatMap((name) => proof(this.labels[name], rows.get(name)));
    $("evidence").replaceChildren(make("dl", {}, ...evidence));
    this.shown(this.parts, figure);
  }

  showRows() {
    fillRows("rows", this.parts.names.map((name) => {
      const part = this.parts.rows.get(name);
      return row(this.labels[name], [...cells(part), ...this.more(part)], {"data-sampler": name});
    }));
  }

  // One band for each name that has points.
  bands(pointsOf) {
    return this.parts.names.map((name) => {
      const points = pointsOf(name);
      return {name: this.labels[name], colour: this.colours[name], points};
    });
  }

  // One band for each name whose curve has come.
  curveBands(pointsOf) {
    const bands = this.bands((name) => {
      const curve = this.parts.curves.get(name);
      return curve ? pointsOf(curve) : [];
    });
    return bands.filter((band) => band.points.length);
  }

  // Epsilon along one field, with the row's own number where the field is now.
  drawAlong(field, now) {
    const label = field.replace("_", " ");
    const bands = this.bands((name) => {
      const known = new Map(this.parts.points.get(name));
      const part = this.parts.rows.get(name);
      if (part?.epsilon && !part.provisional) known.set(now, part.epsilon);
      const point = ([x, e]) => ({x, lower: value(e.lower), upper: value(e.upper)});
      return [...known].sort(([a], [b]) => a - b).map(point);
    });
    const all = bands.flatMap((band) => band.points);
    const heights = all.flatMap((p) => [p.lower, p.upper]).filter((v) => v > 0);
    const least = Math.max(...heights, 1) * 1e-5;
    figureAndTable({
      title: `Epsilon against ${label}`, description: ranges(bands), bands, now,
      x: {label, ...limits(all.map((p) => p.x), {log: true})},
      y: {label: "epsilon", ...limits(heights, {log: true, least})},
      caption: "Solid: no attacker gets beyond, proved at the marks. Dashed: no analysis can go"
        + " below, by an attack. The truth is in between; lines only join the marks. Dotted: where"
        + " you are.",
      header: ["Batches", label, "At least", "At most"],
      cells: (p) => [short(p.x), safe(p.lower, false), safe(p.upper, true)],
    });
  }

  drawDelta(delta) {
    const positive = (number) => Math.max(number, 1e-300); // the axis is logarithmic
    const point = (d) => ({x: d.epsilon, lower: positive(d.lower), upper: positive(d.upper)});
    const bands = this.curveBands((curve) => curve.deltas.map(point));
    figureAndTable({
      title: "Delta against epsilon", description: ranges(bands), bands,
      x: {label: "epsilon", ...limits(bands.flatMap((band) => band.points.map((p) => p.x)))},
      y: {label: "delta", min: delta / 1000, max: 1, log: true},
      caption: "Solid: the delta that is proved to suffice, at the marks. Dashed: less is ruled out"
        + " by an attack. Lines only join the marks.",
      header: ["Batches", "Epsilon", "Delta at least", "Delta at most"],
      cells: (p) => [p.x.toPrecision(6), safe(p.lower, false), safe(p.upper, true)],
    });
  }

  drawTradeoff() {
    const bands = this.curveBands((curve) => reachPoints(curve.tradeoff));
    const found = bands.map((band) => {
      const most = roundUp(band.points.find((p) => p.x === 0.01).upper);
      return `${band.name}: with 1 % false alarms an attacker finds at most ${most} of members`;
    });
    const description = found.join("; ");
    $("words").textContent = found.length ? `${description}.` : "";
    figureAndTable({
      title: "What an attacker can reach", description, blind: true,
      bands: bands.map((band) => ({...band, dots: false, reach: {x: 1, y: 0}})),
      x: {label: "false alarms", min: 0, max: 1, format: percent},
      y: {label: "members found", min: 0, max: 1, format: percent},
      caption: "Above a solid line: out of reach of every attacker, proved. Below a dashed line: no"
        + " analysis by epsilon and delta can rule it out. Dotted: guessing blindly.",
      header: ["Batches", "False alarms", "Not ruled out", "Found at most"],
      listed: (p) => LISTED_RATES.includes(p.x),
      cells: (p) => [`${short(p.x * 100)} %`, `${safe(p.lower * 100, false)} %`, roundUp(p.upper)],
    });
  }
}

function figureAndTable({caption, header, cells, listed = () => true, ...wanted}) {
  draw($("figure"), wanted);
  $("caption").textContent = caption;
  const rows = wanted.bands.flatMap(({name, points}) => (
    points.filter(listed).map((point) => [name, ...cells(point)])));
  $("numbers").replaceChildren(table(wanted.title, header, rows));
}

// The ends of every band, for those who do not see the figure.
function ranges(bands) {
  const end = ({x, upper}) => `at most ${safe(upper, true)} at ${short(x)}`;
  const drawn = bands.filter((band) => band.points.length);
  const range = ({name, points}) => `${name}: from ${end(points[0])} to ${end(points.at(-1))}`;
  return drawn.map(range).join("; ");
}

// Rates of false alarms that the table lists.
const LISTED_RATES = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9,
];

function reachPoints({certified, above}) {
  const corners = new Set([...LISTED_RATES, ...certified.alpha, ...above.alpha]);
  const found = (line, alpha) => Math.max(1 - interpolate(line, alpha), alpha);
  const point = (alpha) => ({x: alpha, lower: found(above, alpha), upper: found(certified, alpha)});
  return [...corners].sort((a, b) => a - b).map(point);
}

// The value of a piecewise linear curve.
function interpolate(line, at) {
  const i = line.alpha.findIndex((alpha) => alpha >= at);
  if (i <= 0) return line.beta[Math.max(i, 0)];
  const share = (at - line.alpha[i - 1]) / (line.alpha[i] - line.alpha[i - 1]);
  return line.beta[i - 1] + share * (line.beta[i] - line.beta[i - 1]);
}

const roundUp = (share) => `${Math.min(Math.ceil(share * 1000) / 10, 100)} %`;

function proof(label, {mechanism, epsilon: {shown, lower_by: lower, upper_by: upper}}) {
  return [
    make("dt", {}, label),
    make("dd", {}, make("code", {}, mechanism ?? "")),
    make("dd", {}, `At least ${inWords(shown.lower)}: ${lower}`),
    make("dd", {}, `At most ${inWords(shown.upper)}: ${upper}`),
  ];
}

// Cells of a bracket: what is not known yet is left open.
function cells(part) {
  const open = () => make("td", {class: "open"}, "…");
  if (!part) return [open(), open()];
  if (!part.epsilon) return [make("td", {colspan: 2}, part.why_not ?? "nothing is proved")];
  const {lower, upper} = part.epsilon.shown;
  const least = part.provisional ? open() : make("td", {"data-side": "lower"}, inWords(lower));
  return [least, make("td", {"data-side": "upper"}, inWords(upper))];
}
