import type { IncomingMessage, ServerResponse } from "node:http";
import { type HeldLock, isStale, named, parse } from "./token.js";

/** Carries the token of a call. */
export const HEADER = "X-Fencing-Token";

const REFUSED = {
  400: `the header ${HEADER} must be a number from 1 to 2^53 - 1`,
  412: "a newer holder of the lock has used this resource",
  428: `the header ${HEADER} must have the token of the lock`,
};

/** The header for a call of a protected service. Throws `LeaseLost`. */
export function headers(lock: HeldLock): Record<string, string> {
  return { [HEADER]: String(named(lock).token) };
}

/** The token of a request, or the status that refuses it. */
function tokenOf(text: string | null | undefined): { token: number; status?: undefined } | { status: 400 | 428 } {
  if (text === null || text === undefined) return { status: 428 };
  try {
    return { token: parse(text) };
  } catch {
    return { status: 400 };
  }
}

/**
 * A handler of `Request`s that calls `work` with the token of each. A request without a token is answered with 428, one with a bad
 * token or several with 400, and one whose work rejects with {@link StaleToken} with 412; another error is passed on.
 *
 * It compares nothing itself, because only the transaction of the work can: `work` raises the token there, with `transaction`.
 */
export function fetchHandler(
  work: (request: Request, token: number) => Promise<Response>,
): (request: Request) => Promise<Response> {
  return async (request) => {
    const given = tokenOf(request.headers.get(HEADER));
    if (given.status) return new Response(REFUSED[given.status], { status: given.status });
    try {
      return await work(request, given.token);
    } catch (error) {
      if (!isStale(error)) throw error;
      return new Response(REFUSED[412], { status: 412 });
    }
  };
}

/**
 * As {@link fetchHandler}, for Express and others with the requests of node:http. Errors go to `next`; so does a `StaleToken` after
 * the answer has begun: `work` answers when its transaction has committed.
 */
export function expressHandler<Req extends IncomingMessage, Res extends ServerResponse>(
  work: (request: Req, response: Res, token: number) => Promise<unknown>,
): (request: Req, response: Res, next: (error: unknown) => void) => Promise<void> {
  return async (request, response, next) => {
    const refuse = (status: keyof typeof REFUSED) => {
      response.statusCode = status;
      response.setHeader("Content-Type", "text/plain; charset=utf-8");
      response.setHeader("Content-Length", REFUSED[status].length);
      response.end(REFUSED[status]);
    };
    const given = tokenOf(request.headers[HEADER.toLowerCase()]?.toString());
    if (given.status) return refuse(given.status);
    try {
      await work(request, response, given.token);
    } catch (error) {
      if (isStale(error) && !response.headersSent) refuse(412);
      else next(error);
    }
  };
}
