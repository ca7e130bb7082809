// What the server says: JSON by fetch, news by server-sent events. A token is asked for once, where the server wants one;
// the link that 'joulewise serve' prints brings a code for one in its fragment (#once=…).
//
// Events are read with fetch and not with EventSource, which cannot send a token.

import { h, modal } from "./dom.js";

const KEY = "joulewise-token";
const PATIENCE_MS = 30_000; // for an answer
const BODY_MS = 60000; // for the whole of an answer, once it has begun
const SILENT_MS = 40_000; // the server says a word at least every 15 s; a line that is silent for longer is dead
let asking = null; // one dialog for all requests that were refused at once
let declined = false; // the reader has none: what is asked for by itself, every few seconds, must not ask for one again

/** What went wrong, in words for the reader. `status` 0: no answer at all. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function token() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** Exchange the code of a link for a token, before anything is asked for. The address loses the code at once. */
export async function redeem() {
  const code = /^#once=([\w-]+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  try {
    const answer = await fetch("/api/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }), cache: "no-store" });
    if (answer.ok) sessionStorage.setItem(KEY, (await answer.json()).token);
  } catch {
    // a server that does not answer is told of by the page itself; without a token it asks for one
  }
}

function headers(accept) {
  const own = token();
  return own ? { Accept: accept, Authorization: `Bearer ${own}` } : { Accept: accept };
}

async function ask(path, accept, signal) {
  for (;;) {
    const used = token();
    let answer;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), PATIENCE_MS);
    try {
      answer = await fetch(path, { headers: headers(accept), signal: AbortSignal.any([late.signal, signal].filter(Boolean)), cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Refused(0, late.signal.aborted ? `The server has not answered for ${PATIENCE_MS / 1000} s.` : "The server does not answer. Is 'joulewise serve' still running?");
    } finally {
      clearTimeout(timer); // from here on it answers, and what it says may be long
    }
    if (answer.status !== 401 || signal?.aborted) return answer;
    if (token() === used && (declined || !(await newToken(used !== null)))) {
      throw new Refused(401, "This server wants a token: 'joulewise serve token --scope read' makes one.");
    }
  }
}

/** The JSON at a path of the API. Throws Refused with the server's own words. */
export async function get(path, signal) {
  const late = new AbortController(); // a network that breaks in the middle of an answer says nothing at all
  const answer = await ask(path, "application/json", AbortSignal.any([late.signal, signal].filter(Boolean)));
  if (!answer.ok) throw await refusal(answer, path);
  const timer = setTimeout(() => late.abort(), BODY_MS);
  const said = await answer.json().catch(() => null).finally(() => clearTimeout(timer));
  if (signal?.aborted) throw signal.reason;
  if (late.signal.aborted) throw new Refused(0, `The server began to answer, and has not ended within ${BODY_MS / 1000} s.`);
  if (said === null) throw new Refused(answer.status, `What the server answered to ${path} cannot be read. Is there a proxy before it that answers in its place?`);
  return said;
}

/** The whole of something that is no JSON, such as a report. */
export async function getBlob(path, signal) {
  const answer = await ask(path, "*/*", signal);
  if (answer.ok) return answer.blob();
  throw await refusal(answer, path);
}

/** What an answer that is none says, in the server's own words where it has any. */
async function refusal(answer, path) {
  const said = await answer.json().catch(() => null);
  const found = said?.detail ?? said?.title ?? said?.message;
  return new Refused(answer.status, typeof found === "string" ? found : `The server answered ${answer.status} to ${path}.`);
}

/** A path of the API with names in it, each encoded: `api("runs", name)`. */
export function api(...names) {
  return `/api/${names.map(encodeURIComponent).join("/")}`;
}

/** With a query; what is null or empty is left out. */
export function query(path, values) {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? `${path}?${new URLSearchParams(kept)}` : path;
}

/** The reader has asked for something: a token may be asked for again. */
export function askAgain() {
  declined = false;
}

/** Whether the reader has given one. */
export function hasToken() {
  return token() !== null;
}

/** One that does not do is not sent again: the server asks for another. */
export function dropToken() {
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // then there was none
  }
}

/** Ask the reader for a token. True if one was given. */
function newToken(wasWrong) {
  asking ??= new Promise((resolve) => {
    const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
    const dialog = h(
      "dialog",
      { "aria-labelledby": "token-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "token-title" }, "A token, please"),
        h("p", {}, wasWrong ? "The server does not know that one." : "This server shows its figures to those with a token."),
        h("p", { class: "small" }, "Open the link that it printed last where it was started (each works once), or make a token: ", h("code", {}, "joulewise serve token --scope read")),
        h("label", { for: "token" }, "Token"),
        input,
        h("div", { class: "row" }, h("button", { value: "go", class: "main" }, "Show"), h("button", { value: "", formnovalidate: true }, "Not now")),
      ),
    );
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "go" && input.value.trim();
      try {
        if (given) sessionStorage.setItem(KEY, given);
      } catch {
        // a browser that keeps nothing cannot be let in
      }
      asking = null;
      declined = !given;
      resolve(Boolean(given));
    });
    modal(dialog);
  });
  return asking;
}

/**
 * The server's news, for as long as the page is open: `onEvent(kind, data)`, `onState("live" | "waiting", why)`, where why
 * is what a Refused says. A stream that breaks is opened again, later and later up to 15 s; while the page is hidden there
 * is none. Returns a function that tries again at once.
 */
export function follow(onEvent, onState) {
  let controller = null;
  let wait_s = 1;
  let timer = 0;

  async function open() {
    controller = new AbortController();
    const own = controller;
    let why = null;
    try {
      const answer = await ask("/api/events", "text/event-stream", own.signal);
      if (!answer.ok) throw await refusal(answer, "/api/events");
      onState("live");
      wait_s = 1;
      await read(answer.body, onEvent);
    } catch (error) {
      why = error instanceof Refused ? error : null; // else it broke off: a server that ends does that
    }
    if (own.signal.aborted) return;
    onState("waiting", why);
    timer = setTimeout(open, wait_s * 1000);
    wait_s = Math.min(15, wait_s * 2);
  }

  function shown() {
    clearTimeout(timer);
    controller?.abort();
    if (!document.hidden) open();
  }

  document.addEventListener("visibilitychange", shown);
  shown();
  return () => {
    wait_s = 1;
    askAgain();
    shown();
  };
}

async function read(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const silent = setTimeout(() => reader.cancel(), SILENT_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(silent));
    if (done) return;
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) tell(block, onEvent);
  }
}

function tell(block, onEvent) {
  let kind = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) kind = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  if (!data.length) return; // a word to keep the line open
  let said;
  try {
    said = JSON.parse(data.join("\n"));
  } catch {
    return;
  }
  onEvent(kind, said);
}
