// Requests to the server, one at a time, whose answers come whole or piece by piece.

import {$, problem, status} from "./dom.js";

// A side of a bracket as a number, and as words.
export const value = (side) => (side === "inf" ? Infinity : side);
export const inWords = (text) => (text === "inf" ? "infinite" : text);

async function refusal(response) {
  if (response.status === 401) location.assign("/login");
  try {
    return (await response.json()).message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

export async function ask(path, params, options = {}) {
  const response = await fetch(`${path}?${params}`, options);
  if (!response.ok) throw new Error(await refusal(response));
  return response;
}

export const askJson = async (path, params, options) => (await ask(path, params, options)).json();

// Server-sent events of one request; resolves when they end, throws with the server's words.
export async function stream(path, params, part, signal) {
  const response = await ask(path, params, {signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value: text, done} = await reader.read();
    if (done) return;
    const events = (rest + text).split("\n\n");
    rest = events.pop();
    for (const one of events) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/s.exec(one) ?? [];
      if (name === "part") {
        answered("new");
        part(JSON.parse(data));
      }
      if (name === "error") throw new Error(JSON.parse(data).message);
    }
  }
}

// What the page shows: the answer to the "new" request; an "old" one, dimmed, until the first part
// of the new one has come; or "none", because the request was refused: numbers of another request
// would pass for its answer.
export function answered(which) {
  document.body.dataset.answer = which;
}

// One request at a time: a new one cancels the old one. Shows the Stop button and problems.
export class Requests {
  constructor({wait = 30} = {}) {
    this.wait = wait;
    $("stop").addEventListener("click", () => {
      this.control?.abort();
      if (document.body.dataset.answer === "old") answered("none");
      this.idle("Stopped. Change something to go on.");
    });
  }

  later(request) {
    this.control?.abort();
    answered("old");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(request), this.wait);
  }

  async now(request) {
    this.control?.abort();
    const control = new AbortController();
    this.control = control;
    answered("old");
    $("problem").hidden = true;
    $("stop").hidden = false;
    document.body.dataset.state = "asking";
    try {
      const words = await request(control.signal);
      if (!control.signal.aborted) this.idle(words ?? "");
    } catch (error) {
      if (control.signal.aborted) return;
      answered("none");
      this.idle("Refused, so there is nothing to show.");
      problem(error instanceof TypeError ? "The server cannot be reached." : error.message);
    }
  }

  idle(words) {
    $("stop").hidden = true;
    status(words);
    document.body.dataset.state = "idle";
  }
}
