import type { Duration } from "@bufbuild/protobuf/wkt";
import { CALL_MS, type Connection, type Connections, cancelled, link, type Send } from "./connections.js";
import { FencepostError, incomplete } from "./errors.js";
import type { Lease as Grant } from "./gen/fencepost/v1/lock_pb.js";
import { duration, now } from "./time.js";

/** Another call takes the wait over before the idle limit of a proxy, which is 60 s in nginx, ends this one. */
export const HAND_OVER_MS = 45_000;
/** How long a call goes on for whose request another call was granted. */
const LATE_ANSWER_MS = 2_000;
/** A store that did not answer a server may have granted the request, and an incomplete answer may grant some of it. */
const UNKNOWN = ["BACKEND_UNAVAILABLE", "NO_QUORUM", "INCOMPLETE"];
/** How often a request that does not wait is repeated if no server answers, beside once at each address. */
const REPEATS = 2;

/**
 * Lets some tries run at a time, in their order, because the time for an answer begins when a call is sent, and a server may take
 * more than that for thousands.
 */
export class Gate {
  #free = 90;
  readonly #queue: (() => void)[] = [];

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#free > 0) this.#free--;
    else await new Promise<void>((go) => this.#queue.push(go));
    try {
      return await work();
    } finally {
      const next = this.#queue.shift();
      if (next) next();
      else this.#free++;
    }
  }
}

/** A request for locks, which can be sent again under its request_id. */
export interface LockRequest {
  /** How many locks. */
  count: number;
  /** Sends it with this wait; without one, as a try. */
  send: (wait: Duration | undefined) => Send<Grant[]>;
  /** Gives back what it was granted. */
  release: (grants: Grant[]) => Promise<void>;
}

/** What was granted, and when the call was sent that was granted it. */
export interface Granted {
  grants: Grant[];
  sent: number;
}

/** One attempt to take locks: calls of one request_id, until one of them is granted or the attempt is undone. */
export class Acquisition {
  #connection: Connection | undefined;
  #mayHaveArrived = false;

  constructor(
    readonly connections: Connections,
    readonly request: LockRequest,
    /** Takes what goes on after the end of the attempt. */
    readonly background: (work: Promise<void>) => void,
    readonly gate: Gate,
    readonly handOverMs = HAND_OVER_MS,
  ) {}

  /** Rejects with a FencepostError, or with the reason of the signal, and undoes then what may have been granted. */
  async run(waitMs: number, signal: AbortSignal): Promise<Granted> {
    signal.throwIfAborted();
    const [end, waits] = [now() + waitMs, waitMs > 0];
    const extra = this.connections.count - 1 + (waits ? 0 : REPEATS);
    try {
      const attempt = () => (waits ? this.#attempt(end, true, signal) : this.gate.run(() => this.#attempt(end, false, signal)));
      const granted = await this.connections.repeat(attempt, end, { extra, waits: true, signal });
      signal.throwIfAborted();
      return granted;
    } catch (error) {
      const isUnknown = error instanceof FencepostError && (error.retry === "elsewhere" || UNKNOWN.includes(error.reason));
      if (signal.aborted || (isUnknown && this.#mayHaveArrived)) this.#undo();
      throw signal.aborted ? signal.reason : error;
    }
  }

  /** Calls that take the wait over from each other. The first grant counts, or the error of the last call. */
  #attempt(end: number, waits: boolean, signal: AbortSignal): Promise<Granted> {
    return new Promise((resolve, reject) => {
      const calling = link([signal], end - now() > this.handOverMs ? cancelled : undefined);
      let first: Granted | undefined;
      let calls = 0;
      let timer: NodeJS.Timeout | undefined;
      const call = async () => {
        const number = ++calls;
        const sent = now();
        const left = waits ? Math.max(1, end - sent) : 0;
        timer = left > this.handOverMs ? setTimeout(call, this.handOverMs) : undefined;
        // Beyond the hand-over, for the case that it comes late.
        const wait = Math.min(left, 2 * this.handOverMs);
        const connection = waits ? this.connections.forWait() : this.connections.current();
        this.#connection = connection;
        try {
          const send = this.request.send(waits ? duration(wait) : undefined);
          const grants = await this.connections.once(send, wait + CALL_MS, connection, calling.signal);
          if (grants.length !== this.request.count) throw incomplete();
          first ??= { grants, sent };
          // A store that remembers no requests grants each of them.
          if (first.grants[0]?.leaseId !== grants[0]?.leaseId)
            this.background(this.request.release(grants).catch(() => undefined));
          resolve(first);
        } catch (error) {
          this.#mayHaveArrived ||= !(error instanceof FencepostError && error.isUnsent);
          if (number < calls) return;
          reject(error);
        }
        clearTimeout(timer);
        calling.unlink();
        if (calls > 1) setTimeout(calling.abort, LATE_ANSWER_MS).unref();
      };
      void call();
    });
  }

  /** Takes the claim out of the queue, or gives back what it was granted: a try finds it by its request_id. */
  #undo(): void {
    const undo = async () => {
      // Over the same connection, so that it does not pass the call that is undone. LOCK_HELD: it was taken out.
      const how = { first: this.#connection, waits: true };
      const grants = await this.connections.call(this.request.send(undefined), undefined, how);
      await this.request.release(grants);
    };
    this.background(undo().catch(() => undefined));
  }
}
