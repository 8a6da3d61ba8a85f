// Elements of a page: finding, making, tables, copying.

export const $ = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// A row of a table: a heading, then cells, which are texts or elements.
export function row(heading, cells, attributes = {}) {
  const all = cells.map((cell) => (cell instanceof Node ? cell : make("td", {}, String(cell))));
  return make("tr", attributes, make("th", {scope: "row"}, heading), ...all);
}

export const fillRows = (id, rows) => $(id).tBodies[0].replaceChildren(...rows);

// A table of numbers next to a figure, for those who do not see it.
export function table(caption, header, rows) {
  const head = make("tr", {}, ...header.map((text) => make("th", {scope: "col"}, text)));
  const cells = (texts) => texts.map((text) => make("td", {}, String(text)));
  const body = rows.map((texts) => make("tr", {}, ...cells(texts)));
  const parts = [make("thead", {}, head), make("tbody", {}, ...body)];
  return make("table", {}, make("caption", {}, caption), ...parts);
}

// A field of a form for a file that is opened from this computer.
export function fileField(id, label, help, accept, opened) {
  const input = make("input", {type: "file", id, accept});
  input.addEventListener("input", (event) => {
    event.stopPropagation();
    opened(input.files[0]);
  });
  const parts = [make("label", {for: id}, label), input, make("span", {class: "help"}, help)];
  return make("div", {class: "field"}, ...parts);
}

export function copyable(button, text) {
  const usual = button.textContent;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = usual; }, 1500);
  });
}

// A function that may be called often and acts at most once a frame.
export function onceAFrame(act) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; act(); });
  };
}

export function status(words) {
  if ($("status").textContent !== words) $("status").textContent = words;
}

export function problem(words) {
  $("problem").textContent = words;
  $("problem").hidden = false;
}

export function progress(done, of) {
  $("progress").max = of || 1;
  $("progress").value = done;
}
