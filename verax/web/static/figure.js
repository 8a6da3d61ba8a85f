// Figures as SVG: bands between a lower and an upper side, lines and dots, on linear or logarithmic axes.
// Nothing here sets a style attribute: the page's content policy forbids them, classes do it.

const SPACE = "http://www.w3.org/2000/svg";
const MARGIN = {left: 64, right: 26, top: 12, bottom: 46};
const SHAPES = [
  "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0-4 0Z", "M-3.6-3.6H3.6V3.6H-3.6Z", "M0-4.6L4.4 3.4H-4.4Z", "M0-5L5 0 0 5-5 0Z", "M0 4.6L4.4-3.4H-4.4Z",
  "M-1.4-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2Z", "M-4.5-1.5H4.5V1.5H-4.5Z", "M-1.5-4.5H1.5V4.5H-1.5Z", "M-4-4L4 4V-4L-4 4Z",
];

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(Number.isInteger(Math.log10(size)) ? 0 : 1).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

// A few digits, rounded to the safe side: a lower bound down, an upper one up.
export function safe(value, up, digits = 4) {
  if (value === 0 || !Number.isFinite(value)) return value === Infinity ? "infinite" : String(value);
  const unit = 10 ** (digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const whole = Number.isFinite(unit) ? (up ? Math.ceil(value * unit) : Math.floor(value * unit)) : NaN;
  return Number.isFinite(whole) ? String(Number((whole / unit).toPrecision(digits))).replace("e+", "e") : String(value);
}

function linearTicks(low, high) {
  const rough = (high - low) / 5;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((times) => size * times >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const each = decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const times of each) {
      const value = Number((times * 10 ** power).toPrecision(12));
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) ticks.push(value);
    }
  }
  const every = Math.ceil(ticks.length / 9);
  return ticks.filter((_, i) => i % every === 0);
}

function axis({min, max, log}, start, end) {
  const low = log ? Math.log(min) : min;
  const high = log ? Math.log(max) : max;
  const place = (value) => {
    const inside = Math.min(Math.max(value, min), max);
    return start + ((log ? Math.log(inside) : inside) - low) / (high - low || 1) * (end - start);
  };
  place.ticks = log ? logTicks(min, max) : linearTicks(min, max);
  return place;
}

const points = (list) => list.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");

function frame(root, x, y, wanted, box) {
  for (const value of x.ticks) {
    root.append(svg("line", {class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom}));
    root.append(svg("text", {x: x(value), y: box.bottom + 18, "text-anchor": "middle"}, (wanted.x.format ?? short)(value)));
  }
  for (const value of y.ticks) {
    root.append(svg("line", {class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value)}));
    root.append(svg("text", {x: box.left - 7, y: y(value) + 4, "text-anchor": "end"}, (wanted.y.format ?? short)(value)));
  }
  root.append(svg("rect", {class: "frame", x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top}));
  root.append(svg("text", {x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle"}, wanted.x.label));
  root.append(svg("text", {transform: `translate(14 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle"}, wanted.y.label));
}

function band(root, series, x, y) {
  const colour = `c${series.colour % 9}`;
  const upper = series.points.map((p) => [x(p.x), y(p.upper)]);
  const lower = series.points.map((p) => [x(p.x), y(p.lower)]);
  if (series.reach !== undefined) {
    root.append(svg("polygon", {class: `reach ${colour}`, points: points([...upper, [x(series.reach.x), y(series.reach.y)]])}));
  }
  root.append(svg("polygon", {class: `band ${colour}`, points: points([...upper, ...lower.reverse()])}));
  root.append(svg("polyline", {class: `lower ${colour}`, points: points(lower)}));
  root.append(svg("polyline", {class: `upper ${colour}`, points: points(upper)}));
  if (series.dots ?? true) for (const [a, b] of upper) root.append(spot(series, a, b));
}

function spot(series, a, b) {
  return svg("path", {class: `spot c${series.colour % 9}`, d: SHAPES[series.colour % 9], transform: `translate(${a.toFixed(1)} ${b.toFixed(1)})`});
}

function scatter(root, series, x, y, pick) {
  for (const point of series.points) {
    const mark = spot(series, x(point.x), y(point.y));
    if (point.open) mark.setAttribute("opacity", ".45");
    if (pick && point.key !== undefined) {
      mark.classList.add("pick");
      mark.append(svg("title", {}, point.told));
      mark.addEventListener("click", () => pick(point.key));
    }
    root.append(mark);
    if (point.chosen) root.append(svg("circle", {class: "ring", cx: x(point.x), cy: y(point.y), r: 10}));
  }
}

// wanted: {title, told, x: {label, min, max, log, format}, y: ..., bands: [{name, colour, points: [{x, lower, upper}]}],
//          scatters: [{name, colour, points: [{x, y, key, told}]}], now: x value to mark, blind: draw the diagonal, pick, legend: false for none}
export function draw(place, wanted) {
  const paint = () => {
    const width = Math.max(place.clientWidth, 280);
    const height = Math.round(Math.min(Math.max(width * 0.62, 260), 460));
    const box = {left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom};
    const x = axis(wanted.x, box.left, box.right);
    if (width < 480) x.ticks = x.ticks.filter((_, i) => x.ticks.length < 6 || i % 2 === 0);
    const y = axis(wanted.y, box.bottom, box.top);
    const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${wanted.title}. ${wanted.told ?? ""}`});
    frame(root, x, y, wanted, box);
    if (wanted.blind) root.append(svg("line", {class: "blind", x1: x(0), y1: y(0), x2: x(1), y2: y(1)}));
    if (wanted.now !== undefined && wanted.now >= wanted.x.min && wanted.now <= wanted.x.max) {
      root.append(svg("line", {class: "now", x1: x(wanted.now), x2: x(wanted.now), y1: box.top, y2: box.bottom}));
    }
    for (const series of wanted.bands ?? []) if (series.points.length) band(root, series, x, y);
    for (const series of wanted.scatters ?? []) scatter(root, series, x, y, wanted.pick);
    place.replaceChildren(root, ...(wanted.legend === false ? [] : [legend(wanted)]));
  };
  paint();
  place.verax?.disconnect();
  let last = place.clientWidth;
  place.verax = new ResizeObserver(() => {
    if (place.clientWidth !== last) {
      last = place.clientWidth;
      paint();
    }
  });
  place.verax.observe(place);
}

function legend(wanted) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const series of [...(wanted.bands ?? []), ...(wanted.scatters ?? [])]) {
    const sign = svg("svg", {viewBox: "-14 -8 28 16", "aria-hidden": "true"});
    if (series.points[0]?.upper !== undefined || wanted.bands?.includes(series)) sign.append(svg("line", {class: `upper c${series.colour % 9}`, x1: -14, x2: 14, y1: 0, y2: 0}));
    sign.append(spot(series, 0, 0));
    const item = document.createElement("li");
    item.append(sign, series.name);
    list.append(item);
  }
  return list;
}

// Limits of an axis that hold all finite values, with some room; logarithmic if they differ by much.
export function limits(values, {log, least} = {}) {
  const good = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  if (!good.length) return log ? {min: 0.1, max: 10, log} : {min: 0, max: 1, log: false};
  const low = Math.max(Math.min(...good), least ?? -Infinity);
  const high = Math.max(...good, low);
  if (log) return {min: low / 1.15, max: high * 1.15 + 1e-300, log: true};
  return {min: Math.min(low, 0), max: high > 0 ? high * 1.08 : 1, log: false};
}
