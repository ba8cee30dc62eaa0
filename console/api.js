// Calls of the server, in the protocol of Connect. Each carries the bearer token.

import { noteServerTime } from "./time.js";

/** How long a call may take, in ms. */
const TIME_LIMIT = 15_000;
/** The length of what precedes a message of a stream: a byte of flags, and the message's length in four. */
const PREFIX = 5;
/** The flag of the message that ends a stream. */
const END = 2;

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

function unreachable(cause) {
  throw new CallError(0, "UNREACHABLE", String(cause));
}

/** The error of this status that the server describes. */
function described(status, { code, message, details }) {
  const info = details?.find(({ type }) => type === "google.rpc.ErrorInfo");
  return new CallError(status, info?.debug.reason ?? code.toUpperCase(), message ?? "");
}

export function hasToken() {
  return bearer !== null;
}

export function setToken(token) {
  bearer = token;
}

async function send(method, type, body, signal) {
  const headers = { "content-type": type };
  if (bearer !== null) headers.authorization = `Bearer ${bearer}`;
  const url = `/fencepost.v1.${method}`;
  const response = await fetch(url, { method: "POST", headers, body, signal, cache: "no-store" }).catch(unreachable);
  if (response.ok) {
    noteServerTime(response.headers.get("date"));
    return response;
  }
  const error = await response.json().catch(() => null);
  // Without a code it is the answer of something before the server.
  if (!error?.code) return unreachable(`${response.status} ${response.statusText}`);
  throw described(response.status, error);
}

/** The answer of a method, such as LockService/GetLock. */
export async function call(method, request, signal) {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(TIME_LIMIT)]);
  const response = await send(method, "application/json", JSON.stringify(request), limited);
  return response.json().catch(unreachable);
}

/** The messages of a stream, until the server ends it. */
export async function* stream(method, request, signal) {
  const response = await send(method, "application/connect+json", prefixed(JSON.stringify(request)), signal);
  const reader = response.body.getReader();
  let rest = new Uint8Array();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(unreachable);
      if (done) unreachable("the stream broke off");
      rest = joined(rest, value);
      for (let end = lengthOf(rest); end <= rest.length; end = lengthOf(rest)) {
        const message = JSON.parse(new TextDecoder().decode(rest.subarray(PREFIX, end)));
        const isEnd = (rest[0] & END) !== 0;
        rest = rest.subarray(end);
        if (isEnd && message.error) throw described(503, message.error);
        if (isEnd) return;
        yield message;
      }
    }
  } finally {
    // It fails only for a stream that has ended.
    reader.cancel().catch(() => {});
  }
}

function prefixed(text) {
  const message = new TextEncoder().encode(text);
  const prefix = new Uint8Array(PREFIX);
  new DataView(prefix.buffer).setUint32(1, message.length);
  return joined(prefix, message);
}

function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

/** The length of the message at the start of these bytes, with its prefix; infinite if it is not known yet. */
function lengthOf(bytes) {
  if (bytes.length < PREFIX) return Number.POSITIVE_INFINITY;
  return PREFIX + new DataView(bytes.buffer, bytes.byteOffset).getUint32(1);
}
