import {Comparison} from "./comparison.js";
import {$, copyable} from "./dom.js";
import {COLOURS, Form, SAMPLERS, figureField, fields, moreFields} from "./form.js";
import {Requests} from "./request.js";

const requests = new Requests();
const form = new Form($("form"), [
  ...fields("records", "batch", "epochs", "noise_multiplier", "delta", "group", "sampler"),
  ...moreFields("clipping", "clip_groups", "relation"),
  figureField("noise"),
], () => requests.later(compare));
const comparison = new Comparison({
  path: "/api/compare/stream", labels: SAMPLERS, colours: COLOURS,
  axes: {noise: "noise_multiplier", epochs: "epochs"},
  more: (part) => [part?.relation ?? ""],
});
copyable($("share"), () => location.href);

async function compare(signal) {
  const chosen = form.all("sampler");
  if (!chosen.length) throw new Error("Choose at least one way of drawing batches.");
  const {rows} = await comparison.ask(form, chosen, signal);
  const missing = chosen.filter((name) => !rows.get(name)?.epsilon).map((name) => SAMPLERS[name]);
  return missing.length ? `Done; nothing is proved for ${missing.join(", ")}.` : "Done.";
}

requests.now(compare);
