// The figures that Compare and Federated share, from the parts of an answer.

import {draw, limits, safe, short} from "./figure.js";
import {$, inWords, make, table, value} from "./common.js";

const percent = (share) => `${Math.round(share * 100)} %`;

// What is known: rows by name, points by name and place, curves by name.
export class Parts {
  constructor(names) {
    this.names = names;
    this.rows = new Map();
    this.points = new Map(names.map((name) => [name, new Map()]));
    this.curves = new Map();
    this.of = 0;
    this.done = 0;
  }

  add(part) {
    if (part.kind === "begin") this.of = part.of;
    else if (!part.provisional) this.done += 1;
    if (part.kind === "row" && !(part.provisional && this.rows.has(part.sampler))) this.rows.set(part.sampler, part);
    if (part.kind === "point" && part.epsilon) this.points.get(part.sampler)?.set(part.x, part.epsilon);
    if (part.kind === "curve" && part.deltas?.length) this.curves.set(part.sampler, part);
  }
}

// Epsilon against something, with the row's own number where it is asked.
export function against(parts, {title, x, now, names, colours, log}) {
  const bands = parts.names.map((name) => {
    const known = new Map(parts.points.get(name));
    const row = parts.rows.get(name);
    if (row?.epsilon && !row.provisional && now !== undefined) known.set(now, row.epsilon);
    const points = [...known].sort(([a], [b]) => a - b).map(([at, e]) => ({x: at, lower: value(e.lower), upper: value(e.upper)}));
    return {name: names[name], colour: colours[name], points};
  });
  const all = bands.flatMap((band) => band.points);
  const heights = all.flatMap((p) => [p.lower, p.upper]).filter((v) => v > 0);
  const places = all.map((p) => p.x);
  draw($("figure"), {
    title, told: told(bands), bands, now,
    x: {label: x, ...limits(places, {log: true})},
    y: {label: "epsilon", ...limits(heights, {log, least: Math.max(...heights, 1) * 1e-5})},
  });
  $("caption").textContent = "Solid: no attacker gets beyond, proved. Dashed: no analysis can go below, by an attack. The truth is in between. Dotted: where you are.";
  const rows = bands.flatMap((band) => band.points.map((p) => [band.name, short(p.x), safe(p.lower, false), safe(p.upper, true)]));
  $("numbers").replaceChildren(table(title, ["Batches", x, "At least", "At most"], rows));
}

function told(bands) {
  const some = bands.filter((band) => band.points.length);
  return some.map((band) => {
    const first = band.points[0];
    const last = band.points.at(-1);
    return `${band.name}: from at most ${safe(first.upper, true)} at ${short(first.x)} to at most ${safe(last.upper, true)} at ${short(last.x)}`;
  }).join("; ");
}

export function deltaFigure(parts, {names, colours, delta}) {
  const bands = parts.names.filter((name) => parts.curves.has(name)).map((name) => ({
    name: names[name], colour: colours[name],
    points: parts.curves.get(name).deltas.map((d) => ({x: d.epsilon, lower: Math.max(d.lower, 1e-300), upper: Math.max(d.upper, 1e-300)})),
  }));
  const all = bands.flatMap((band) => band.points);
  const title = "Delta against epsilon";
  draw($("figure"), {
    title, told: told(bands), bands,
    x: {label: "epsilon", ...limits(all.map((p) => p.x))},
    y: {label: "delta", min: delta / 1000, max: 1, log: true},
  });
  $("caption").textContent = "Solid: the delta that is proved to suffice at each epsilon. Dashed: less is ruled out by an attack.";
  const rows = bands.flatMap((band) => band.points.map((p) => [band.name, p.x.toPrecision(6), safe(p.lower, false), safe(p.upper, true)]));
  $("numbers").replaceChildren(table(title, ["Batches", "Epsilon", "Delta at least", "Delta at most"], rows));
}

function along(line, at) {
  const i = line.alpha.findIndex((alpha) => alpha >= at);
  if (i <= 0) return line.beta[Math.max(i, 0)];
  const share = (at - line.alpha[i - 1]) / (line.alpha[i] - line.alpha[i - 1]);
  return line.beta[i - 1] + share * (line.beta[i] - line.beta[i - 1]);
}

const SHOWN = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

export function tradeoffFigure(parts, {names, colours}) {
  const bands = parts.names.filter((name) => parts.curves.get(name)?.tradeoff).map((name) => {
    const {certified, above} = parts.curves.get(name).tradeoff;
    const corners = [...new Set([...SHOWN, ...certified.alpha, ...above.alpha])].sort((a, b) => a - b);
    const points = corners.map((alpha) => ({x: alpha, lower: Math.max(1 - along(above, alpha), alpha), upper: Math.max(1 - along(certified, alpha), alpha)}));
    return {name: names[name], colour: colours[name], points, dots: false, reach: {x: 1, y: 0}};
  });
  const title = "What an attacker can reach";
  const words = bands.map((band) => `${band.name}: with 1 % false alarms an attacker finds at most ${up(at(band, 0.01))} of members`);
  draw($("figure"), {
    title, told: words.join("; "), bands, blind: true,
    x: {label: "false alarms", min: 0, max: 1, format: percent},
    y: {label: "members found", min: 0, max: 1, format: percent},
  });
  $("caption").textContent = "Above a solid line: out of reach of every attacker, proved. Below a dashed line: no analysis by epsilon and delta can rule it out. Dotted: guessing blindly.";
  $("words").textContent = words.length ? `${words.join("; ")}.` : "";
  const listed = bands.flatMap((band) => band.points.filter((p) => SHOWN.includes(p.x)).map((p) => [band.name, p]));
  const rows = listed.map(([name, p]) => [name, `${short(p.x * 100)} %`, `${safe(p.lower * 100, false)} %`, up(p.upper)]);
  $("numbers").replaceChildren(table(title, ["Batches", "False alarms", "Not ruled out", "Found at most"], rows));
}

const at = (band, alpha) => band.points.find((p) => p.x === alpha).upper;
const up = (share) => `${Math.min(Math.ceil(share * 1000) / 10, 100)} %`;

export function evidence(parts, names) {
  const list = make("dl");
  for (const name of parts.names) {
    const row = parts.rows.get(name);
    if (!row?.epsilon) continue;
    list.append(make("dt", {}, names[name]));
    list.append(make("dd", {}, make("code", {}, row.mechanism ?? "")));
    list.append(make("dd", {}, `At least ${inWords(row.epsilon.shown.lower)}: ${row.epsilon.lower_by}`));
    list.append(make("dd", {}, `At most ${inWords(row.epsilon.shown.upper)}: ${row.epsilon.upper_by}`));
  }
  $("evidence").replaceChildren(list);
}

// Cells of a bracket: what is not known yet is left open.
export function cells(row) {
  if (!row) return [make("td", {class: "open"}, "…"), make("td", {class: "open"}, "…")];
  if (!row.epsilon) return [make("td", {colspan: 2}, row.why_not ?? "nothing is proved")];
  const {lower, upper} = row.epsilon.shown;
  const least = row.provisional ? make("td", {class: "open"}, "…") : make("td", {"data-side": "lower"}, inWords(lower));
  return [least, make("td", {"data-side": "upper"}, inWords(upper))];
}
