// The OpenAPI document as a page.

import {$, ask, make} from "./common.js";

const typed = (schema) => schema.enum?.join(" | ") ?? schema.items?.enum?.join(" | ") ?? schema.type ?? "";
const bounds = ({minimum, maximum}) => (minimum === undefined ? "" : `, ${minimum} to ${maximum}`);

const api = await (await ask("/api/openapi.json", "")).json();
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const list = make("dl");
    for (const {name, schema, description, required} of operation.parameters ?? []) {
      const usual = schema.default === undefined ? "" : `; default ${JSON.stringify(schema.default)}`;
      list.append(make("dt", {}, make("code", {}, name), required ? " (required)" : ""));
      list.append(make("dd", {}, `${description ?? schema.description ?? ""} ${typed(schema)}${bounds(schema)}${usual}`));
    }
    $("operations").append(make("section", {}, make("h2", {}, make("code", {}, `${method.toUpperCase()} ${path}`)), make("p", {}, operation.description ?? ""), list));
  }
}
