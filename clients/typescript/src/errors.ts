import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "./gen/error_details_pb.js";
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
  /** @internal Whether no server can have received the call. */
  isUnsent = false;

  constructor(
    /**
     * The server's reason, such as `LOCK_HELD`; the name of the gRPC code, such as `Unimplemented`, if there is none. It is
     * `INCOMPLETE` if an answer lacks a lease: what it grants is released.
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

/** The server did not accept the credentials, or they cannot be read. */
export class Unauthenticated extends FencepostError {}

/** An argument is out of its bounds. The message names it and the bound. */
export class InvalidArgument extends FencepostError {}

/** The client was closed. */
export class ClientClosed extends FencepostError {}

/** An answer that cannot be used. */
export const incomplete = () => new FencepostError("INCOMPLETE", "the server's response lacks a required field");

/** The codes of calls that no server of Fencepost answered. */
const NO_ANSWER = [Code.Unavailable, Code.Aborted, Code.Unknown, Code.Canceled, Code.DeadlineExceeded, Code.Internal];
/** The errors of a connection that was not opened. */
const NOT_SENT = ["ECONNREFUSED", "ENOENT", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH"];
const BY_CODE: { [code in Code]?: typeof FencepostError } = {
  [Code.Unavailable]: Unavailable,
  [Code.ResourceExhausted]: Overloaded,
  [Code.PermissionDenied]: PermissionDenied,
  [Code.Unauthenticated]: Unauthenticated,
  [Code.InvalidArgument]: InvalidArgument,
};

/** What a call to this address failed with. */
export function typed(cause: unknown, address: string): FencepostError {
  if (cause instanceof FencepostError) return cause;
  const failed = ConnectError.from(cause);
  const { code, metadata, rawMessage } = failed;
  const reason = metadata.get("fencepost-reason") ?? "";
  const isAnswer = reason !== "" || !NO_ANSWER.includes(code);
  const error = isAnswer
    ? answered(failed, reason)
    : new Unavailable("UNREACHABLE", `no answer from ${address}: ${rawMessage}`, { cause });
  const isTemporary = error instanceof Unavailable || ["OVERLOADED", "QUEUE_FULL", "WAIT_TIMEOUT"].includes(reason);
  error.retry = !isAnswer || reason === "DRAINING" ? "elsewhere" : isTemporary ? "later" : "never";
  const [retryInfo] = failed.findDetails(RetryInfoSchema);
  error.pauseMs = retryInfo && milliseconds(retryInfo.retryDelay);
  error.isUnsent = !isAnswer && NOT_SENT.includes((failed.cause as NodeJS.ErrnoException | undefined)?.code ?? "");
  return error;
}

function answered(cause: ConnectError, reason: string): FencepostError {
  const { code, metadata, rawMessage } = cause;
  if (reason === "LEASE_LOST")
    return new LeaseLost((metadata.get("fencepost-cause") ?? "unknown") as LossCause, rawMessage, { cause });
  if (reason === "WAIT_TIMEOUT") return new WaitTimeout(reason, rawMessage, { cause });
  if (reason !== "LOCK_HELD") return new (BY_CODE[code] ?? FencepostError)(reason || (Code[code] ?? ""), rawMessage, { cause });
  const held = new LockHeld(reason, rawMessage, { cause });
  const { owner, remaining_ttl_ms: remaining } = cause.findDetails(ErrorInfoSchema)[0]?.metadata ?? {};
  return Object.assign(held, { owner, remainingMs: remaining === undefined ? undefined : Number(remaining) });
}
