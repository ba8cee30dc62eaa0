import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "./gen/error_details_pb.js";
import type { SessionEvent_CommandError as CommandError } from "./gen/fencepost/v1/lock_pb.js";
import { milliseconds } from "./time.js";

/**
 * How a lease ended: `expired`, `released` or `forced` (by an operator) as the server says, `unknown` if the server no longer
 * remembers, and `unrenewed` if no renewal was confirmed within the TTL, so that the lease may have expired.
 */
export type LossCause = "expired" | "released" | "forced" | "unknown" | "unrenewed";

/** Any failure of this package. A cancelled call rejects with the reason of its `AbortSignal` instead. */
export class FencepostError extends Error {
  /** @internal Whether a repetition may succeed: over another connection, later over the same one, or never. */
  retry: "elsewhere" | "later" | "never" = "never";
  /** @internal The pause before it that the server asks for, in milliseconds. */
  pauseMs: number | undefined;
  /** @internal The field that the server refuses. */
  field: string | undefined;

  constructor(
    /**
     * The server's reason, such as `LOCK_HELD`; the name of the gRPC code, such as `Unimplemented`, if there is none. It is
     * `INCOMPLETE` if an answer lacks a lease: what it grants is released. It is `TLS` if the two sides do not agree on certificates
     * or encryption.
     */
    readonly reason: string,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The lock is held, and `waitMs` was not given. */
export class LockHeld extends FencepostError {
  /** The owner label of the first holder, if the server told it. */
  owner: string | undefined;
  /** Milliseconds until the first holder's lease ends unless it is renewed, if the server told it. */
  remainingMs: number | undefined;
}

/** The lock was not granted within `waitMs`. */
export class WaitTimeout extends FencepostError {}

/** The lease has ended, or may have ended: another client may hold the lock. */
export class LeaseLost extends FencepostError {
  constructor(
    /** How the lease ended. */
    readonly loss: LossCause,
    message = `the lease is lost: ${loss}`,
    options?: ErrorOptions,
  ) {
    super("LEASE_LOST", message, options);
  }
}

/** No server could serve the call: none answered, or its store is away. Also a release that was not confirmed. */
export class Unavailable extends FencepostError {}

/** The server, the queue of the lock or a quota is full: `OVERLOADED` or `QUEUE_FULL`. */
export class Overloaded extends FencepostError {}

/** The server's rules do not allow the call. */
export class PermissionDenied extends FencepostError {}

/** The server did not accept the credentials. */
export class Unauthenticated extends FencepostError {}

/** An argument is out of its bounds. The message names it and the bound. */
export class InvalidArgument extends FencepostError {}

/** The client was closed. */
export class ClientClosed extends FencepostError {}

/** An answer that cannot be used. */
export const incomplete = () => new FencepostError("INCOMPLETE", "the server's response lacks a required field");

/** The codes of calls that no server of Fencepost answered. */
const NO_ANSWER = [Code.Unavailable, Code.Aborted, Code.Unknown, Code.Canceled, Code.DeadlineExceeded, Code.Internal];
const BY_CODE: { [code in Code]?: typeof FencepostError } = {
  [Code.Unavailable]: Unavailable,
  [Code.ResourceExhausted]: Overloaded,
  [Code.PermissionDenied]: PermissionDenied,
  [Code.Unauthenticated]: Unauthenticated,
  [Code.InvalidArgument]: InvalidArgument,
};
const LATER = ["OVERLOADED", "QUEUE_FULL", "WAIT_TIMEOUT"];

/** What a call to this address failed with. */
export function typed(cause: unknown, address: string): FencepostError {
  if (cause instanceof FencepostError) return cause;
  const failed = ConnectError.from(cause);
  const reason = failed.metadata.get("fencepost-reason") ?? "";
  if (reason || !NO_ANSWER.includes(failed.code)) return answered(failed, reason, failed.metadata.get("fencepost-cause"));
  return unanswered(`no answer from ${address}: ${failed.rawMessage}`, cause);
}

/** What a command failed with. */
export function ofCommand({ code, message, details, reason, cause }: CommandError): FencepostError {
  const failed = new ConnectError(message, code);
  failed.details = details.map(({ typeUrl, value }) => ({ type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1), value }));
  return answered(failed, reason, cause);
}

/** No server answered, or none in time. Another one may. */
export function unanswered(message: string, cause?: unknown): FencepostError {
  return Object.assign(new Unavailable("UNREACHABLE", message, { cause }), { retry: "elsewhere" });
}

function answered(cause: ConnectError, reason: string, loss: string | null): FencepostError {
  const { code, rawMessage } = cause;
  const details = cause.findDetails(ErrorInfoSchema)[0]?.metadata ?? {};
  const [retryInfo] = cause.findDetails(RetryInfoSchema);
  const error = make();
  const isTemporary = error instanceof Unavailable || LATER.includes(reason);
  error.retry = reason === "DRAINING" ? "elsewhere" : isTemporary ? "later" : "never";
  error.pauseMs = retryInfo && milliseconds(retryInfo.retryDelay);
  error.field = details.field;
  return error;

  function make(): FencepostError {
    if (reason === "LEASE_LOST") return new LeaseLost((loss || "unknown") as LossCause, rawMessage, { cause });
    if (reason === "WAIT_TIMEOUT") return new WaitTimeout(reason, rawMessage, { cause });
    if (reason !== "LOCK_HELD") return new (BY_CODE[code] ?? FencepostError)(reason || (Code[code] ?? ""), rawMessage, { cause });
    const { owner, remaining_ttl_ms: remaining } = details;
    const remainingMs = remaining === undefined ? undefined : Number(remaining);
    return Object.assign(new LockHeld(reason, rawMessage, { cause }), { owner, remainingMs });
  }
}
