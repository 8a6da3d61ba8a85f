// Figures as SVG: bands between a lower and an upper side, points, on linear or logarithmic axes.
// Nothing here sets a style attribute: the page's content policy forbids them, classes do it.

import {make} from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const MARGIN = {left: 64, right: 26, top: 12, bottom: 46};
// The mark of every colour, so that nobody needs to see the colours.
const MARKS = [
  "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0-4 0Z", "M-3.6-3.6H3.6V3.6H-3.6Z", "M0-4.6L4.4 3.4H-4.4Z",
  "M0-5L5 0 0 5-5 0Z", "M0 4.6L4.4-3.4H-4.4Z",
  "M-1.4-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2Z",
  "M-4.5-1.5H4.5V1.5H-4.5Z", "M-1.5-4.5H1.5V4.5H-1.5Z", "M-4-4L4 4V-4L-4 4Z",
];

function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e5 && size >= 1e-3) return String(Number(value.toPrecision(3)));
  return value.toExponential(Number.isInteger(Math.log10(size)) ? 0 : 1).replace("e+", "e");
}

// A few digits, rounded to the safe side: a lower bound down, an upper one up.
export function safe(value, up, digits = 4) {
  if (value === Infinity) return "infinite";
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const unit = 10 ** (digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const whole = up ? Math.ceil(value * unit) : Math.floor(value * unit);
  if (!Number.isFinite(unit) || !Number.isFinite(whole)) return String(value);
  return String(Number((whole / unit).toPrecision(digits))).replace("e+", "e");
}

function linearTicks(low, high) {
  const rough = (high - low) / 5;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((times) => size * times >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const each = decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power += 1) {
    for (const times of each) ticks.push(Number((times * 10 ** power).toPrecision(12)));
  }
  const inside = ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  const every = Math.ceil(inside.length / 9);
  return inside.filter((_, i) => i % every === 0);
}

// The pixel of a value between start and end.
function axis({min, max, log, label, format = short}, start, end) {
  const scale = log ? Math.log : (value) => value;
  const [low, high] = [scale(min), scale(max)];
  const place = (value) => {
    const inside = Math.min(Math.max(value, min), max);
    return start + (scale(inside) - low) / (high - low || 1) * (end - start);
  };
  return Object.assign(place, {label, format, ticks: (log ? logTicks : linearTicks)(min, max)});
}

const pixels = (list) => list.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
const middle = (one, other) => (one + other) / 2;

function frame(x, y, {left, right, top, bottom}) {
  const line = (x1, x2, y1, y2) => svg("line", {class: "grid", x1, x2, y1, y2});
  const label = (anchor, attributes, text) => (
    svg("text", {"text-anchor": anchor, ...attributes}, text));
  const [across, down] = [middle(left, right), middle(top, bottom)];
  return [
    ...x.ticks.flatMap((tick) => [
      line(x(tick), x(tick), top, bottom),
      label("middle", {x: x(tick), y: bottom + 18}, x.format(tick)),
    ]),
    ...y.ticks.flatMap((tick) => [
      line(left, right, y(tick), y(tick)),
      label("end", {x: left - 7, y: y(tick) + 4}, y.format(tick)),
    ]),
    svg("rect", {class: "frame", x: left, y: top, width: right - left, height: bottom - top}),
    label("middle", {x: across, y: bottom + 38}, x.label),
    label("middle", {transform: `translate(14 ${down}) rotate(-90)`}, y.label),
  ];
}

const colourOf = ({colour}) => `c${colour % MARKS.length}`;

function mark(series, a, b) {
  const transform = `translate(${a.toFixed(1)} ${b.toFixed(1)})`;
  const d = MARKS[series.colour % MARKS.length];
  return svg("path", {class: `spot ${colourOf(series)}`, d, transform});
}

function band(series, x, y) {
  if (!series.points.length) return [];
  const {reach, dots = true} = series;
  const upper = series.points.map((p) => [x(p.x), y(p.upper)]);
  const lower = series.points.map((p) => [x(p.x), y(p.lower)]);
  const shape = (name, kind, points) => (
    svg(name, {class: `${kind} ${colourOf(series)}`, points: pixels(points)}));
  return [
    ...(reach ? [shape("polygon", "reach", [...upper, [x(reach.x), y(reach.y)]])] : []),
    shape("polygon", "band", [...upper, ...[...lower].reverse()]),
    shape("polyline", "lower", lower),
    shape("polyline", "upper", upper),
    ...(dots ? upper.map(([a, b]) => mark(series, a, b)) : []),
  ];
}

function scatter(series, x, y, pick) {
  return series.points.flatMap((point) => {
    const [cx, cy] = [x(point.x), y(point.y)];
    const one = mark(series, cx, cy);
    if (point.open) one.setAttribute("opacity", ".45");
    if (pick) {
      one.classList.add("pick");
      one.append(svg("title", {}, point.description));
      one.addEventListener("click", () => pick(point.key));
    }
    return point.chosen ? [one, svg("circle", {class: "ring", cx, cy, r: 10})] : [one];
  });
}

// wanted: {title, description, x: {label, min, max, log, format}, y: ...,
//   bands: [{name, colour, points: [{x, lower, upper}], dots, reach}],
//   scatters: [{name, colour, points: [{x, y, key, description, open, chosen}]}],
//   now: x value to mark, blind: draw the diagonal, pick, legend: false for none}
export function draw(place, wanted) {
  paint(place, wanted);
  place.observer?.disconnect();
  let last = place.clientWidth;
  place.observer = new ResizeObserver(() => {
    if (place.clientWidth === last) return;
    last = place.clientWidth;
    paint(place, wanted);
  });
  place.observer.observe(place);
}

function paint(place, wanted) {
  const {bands = [], scatters = [], now, blind, legend: wantsLegend = true} = wanted;
  const width = Math.max(place.clientWidth, 280);
  const height = Math.round(Math.min(Math.max(width * 0.62, 260), 460));
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  const {left, top} = MARGIN;
  const x = axis(wanted.x, left, right);
  if (width < 480 && x.ticks.length >= 6) x.ticks = x.ticks.filter((_, i) => i % 2 === 0);
  const y = axis(wanted.y, bottom, top);
  const line = (kind, x1, x2, y1, y2) => svg("line", {class: kind, x1, x2, y1, y2});
  const label = `${wanted.title}. ${wanted.description ?? ""}`;
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
  root.append(...frame(x, y, {left, right, top, bottom}));
  if (blind) root.append(line("blind", x(0), x(1), y(0), y(1)));
  if (now >= wanted.x.min && now <= wanted.x.max) {
    root.append(line("now", x(now), x(now), top, bottom));
  }
  root.append(...bands.flatMap((series) => band(series, x, y)));
  root.append(...scatters.flatMap((series) => scatter(series, x, y, wanted.pick)));
  place.replaceChildren(root, ...(wantsLegend ? [legend(bands, scatters)] : []));
}

function legend(bands, scatters) {
  const item = (series, ...lines) => {
    const sign = svg("svg", {viewBox: "-14 -8 28 16", "aria-hidden": "true"}, ...lines);
    sign.append(mark(series, 0, 0));
    return make("li", {}, sign, series.name);
  };
  const line = (series) => (
    svg("line", {class: `upper ${colourOf(series)}`, x1: -14, x2: 14, y1: 0, y2: 0}));
  const items = [
    ...bands.map((series) => item(series, line(series))),
    ...scatters.map((series) => item(series)),
  ];
  return make("ul", {class: "legend"}, ...items);
}

// Limits of an axis that hold all finite values, with some room.
export function limits(values, {log = false, least = -Infinity} = {}) {
  const good = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  if (!good.length) return {min: log ? 0.1 : 0, max: log ? 10 : 1, log};
  const low = Math.max(Math.min(...good), least);
  const high = Math.max(...good, low);
  if (log) return {min: low / 1.15, max: high * 1.15 + 1e-300, log};
  return {min: Math.min(low, 0), max: high > 0 ? high * 1.08 : 1, log};
}
