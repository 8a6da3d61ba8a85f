// What a utility graph expects of plans; the same as verax.planning.utility, tested against it.

import {value} from "./common.js";

const FORMAT = 1;
const CLOSE = 0.002; // expected accuracies that count as the same

// A graph as verax plan utility --out writes it; throws if it is something else.
export function utilityGraph(content) {
  const {verax_utility: format, lines, learning_rate: rate, rounds} = content;
  const good = lines.every((line) => Number.isFinite(line.accuracy) && line.points.every((p) => Number.isFinite(p.sigma) && Number.isFinite(p.fraction)));
  if (format !== FORMAT || !lines.length || !good || !(rate > 0) || !(rounds > 0)) throw new Error("not a utility graph");
  return {...content, path: rate * rounds};
}

// What noise leaves of a line's accuracy: straight between the points, 1 at no noise, flat beyond the last.
function fraction(line, sigma) {
  let [x, y] = [0, 1];
  for (const p of line.points) {
    if (sigma <= p.sigma) return y + (p.fraction - y) * (sigma - x) / (p.sigma - x);
    [x, y] = [p.sigma, p.fraction];
  }
  return y;
}

export function expectedOf(graph, one) {
  const sigma = graph.path / value(one.signal_of_run);
  const lines = graph.lines.map((line) => ({clip: line.clip_norm, accuracy: line.accuracy * fraction(line, sigma), rate: graph.path / one.rounds}));
  return lines.reduce((best, line) => (line.accuracy > best.accuracy ? line : best));
}

// The best expected accuracy; of those close to it the least work. Fewer rounds than the graph's own were not tried.
export function bestByGraph(graph, plans) {
  const all = plans.map((one, i) => ({one, i, ...expectedOf(graph, one)})).filter(({one}) => one.rounds >= graph.rounds);
  const top = Math.max(...all.map(({accuracy}) => accuracy));
  const near = all.filter(({accuracy}) => accuracy >= top - CLOSE);
  return near.sort((a, b) => a.one.records_touched - b.one.records_touched || b.accuracy - a.accuracy)[0];
}
