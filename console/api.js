// Calls of the server. Each carries the bearer token.

import { noteServerTime } from "./time.js";

/** How long a call may take, and how long a stream may be silent; the server sends a line every 5 s. In ms. */
const TIME_LIMIT = 15_000;

/** In memory alone: no other tab, no copy of this one and nobody who restores it later gets the token. */
let bearer = null;

/** An error of the server, or the lack of its answer (status 0). */
export class CallError extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

export function hasToken() {
  return bearer !== null;
}

export function setToken(token) {
  bearer = token;
}

async function send(method, request, signal) {
  const headers = { "content-type": "application/json" };
  if (bearer !== null) headers.authorization = `Bearer ${bearer}`;
  let response;
  try {
    const body = JSON.stringify(request);
    response = await fetch(`/api/${method}`, { method: "POST", headers, body, signal, cache: "no-store" });
  } catch (cause) {
    throw new CallError(0, "UNREACHABLE", String(cause));
  }
  if (response.ok) {
    noteServerTime(response.headers.get("date"));
    return response;
  }
  const { error } = await response.json().catch(() => ({}));
  // Without a reason it is the answer of something before the server.
  if (!error?.reason) throw new CallError(0, "UNREACHABLE", `${response.status} ${response.statusText}`);
  throw new CallError(response.status, error.reason, error.message);
}

/** The answer of a method. */
export async function call(method, request, signal) {
  const response = await send(method, request, AbortSignal.any([signal, AbortSignal.timeout(TIME_LIMIT)]));
  try {
    return await response.json();
  } catch (cause) {
    throw new CallError(0, "UNREACHABLE", String(cause));
  }
}

/** The messages of a stream, until the server ends it. */
export async function* stream(method, request, signal) {
  const silent = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silent.abort(), TIME_LIMIT);
  };
  heard();
  try {
    const response = await send(method, request, AbortSignal.any([signal, silent.signal]));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read().catch((cause) => {
        throw new CallError(0, "UNREACHABLE", String(cause));
      });
      if (done) return;
      heard();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.filter((text) => text !== "")) {
        const message = JSON.parse(line);
        if (message.error) throw new CallError(503, message.error.reason, message.error.message);
        yield message;
      }
    }
  } finally {
    clearTimeout(timer);
    silent.abort();
  }
}
