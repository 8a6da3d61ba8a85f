// What a utility graph expects of plans; as verax.planning.utility does, and tested against it.

import {value} from "./request.js";

const FORMAT = 1;
const CLOSE = 0.002; // expected accuracies that count as the same

// A graph as verax plan utility --out writes it; throws if it is something else.
export function utilityGraph(content) {
  const {verax_utility: format, lines, learning_rate: rate, rounds} = content;
  const isPoint = ({sigma, fraction}) => Number.isFinite(sigma) && Number.isFinite(fraction);
  const isLine = ({accuracy, points}) => Number.isFinite(accuracy) && points.every(isPoint);
  const good = format === FORMAT && lines.length && lines.every(isLine) && rate > 0 && rounds > 0;
  if (!good) throw new Error("not a utility graph");
  return {...content, path: rate * rounds};
}

// What noise leaves of a line's accuracy: straight between the points, 1 at no noise, flat beyond
// the last.
function fraction(line, sigma) {
  let [x, y] = [0, 1];
  for (const p of line.points) {
    if (sigma <= p.sigma) return y + (p.fraction - y) * (sigma - x) / (p.sigma - x);
    [x, y] = [p.sigma, p.fraction];
  }
  return y;
}

export function expectedOf(graph, plan) {
  const sigma = graph.path / value(plan.signal_of_run);
  const rate = graph.path / plan.rounds;
  const lines = graph.lines.map((line) => (
    {clip: line.clip_norm, accuracy: line.accuracy * fraction(line, sigma), rate}));
  return lines.reduce((best, line) => (line.accuracy > best.accuracy ? line : best));
}

// The best expected accuracy; of those close to it the least work. Fewer rounds than the graph's
// own were not tried.
export function bestByGraph(graph, plans) {
  const all = plans.map((plan, i) => ({plan, i, ...expectedOf(graph, plan)}));
  const tried = all.filter(({plan}) => plan.rounds >= graph.rounds);
  const top = Math.max(...tried.map(({accuracy}) => accuracy));
  const near = tried.filter(({accuracy}) => accuracy >= top - CLOSE);
  const work = ({plan}) => plan.records_touched;
  return near.sort((a, b) => work(a) - work(b) || b.accuracy - a.accuracy)[0];
}
