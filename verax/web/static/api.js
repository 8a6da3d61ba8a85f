// The OpenAPI document as a page.

import {$, make} from "./dom.js";
import {askJson} from "./request.js";

function parameter({name, schema, description, required}) {
  const choices = schema.enum ?? schema.items?.enum;
  const kind = choices?.map((choice) => choice || "\"\"").join(" | ") ?? schema.type ?? "";
  const {minimum, maximum} = schema;
  const usual = schema.default === undefined ? "" : `default ${JSON.stringify(schema.default)}`;
  const facts = [
    schema.title, description ?? schema.description, kind,
    minimum === undefined ? "" : `${minimum} to ${maximum}`, usual,
  ];
  return [
    make("dt", {}, make("code", {}, name), required ? " (required)" : ""),
    make("dd", {}, facts.filter(Boolean).join("; ")),
  ];
}

const api = await askJson("/api/openapi.json", "");
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, {parameters = [], description = ""}] of Object.entries(methods)) {
    const title = make("h2", {}, make("code", {}, `${method.toUpperCase()} ${path}`));
    const list = make("dl", {}, ...parameters.flatMap(parameter));
    $("operations").append(make("section", {}, title, make("p", {}, description), list));
  }
}
