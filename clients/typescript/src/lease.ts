import { setMaxListeners } from "node:events";
import { LeaseLost, type LossCause } from "./errors.js";
import { type Lease as Grant, Guarantee } from "./gen/fencepost/v1/lock_pb.js";
import { guard, type Logger } from "./options.js";
import { milliseconds, now } from "./time.js";

/** A lease that was granted, and until when the client may count on it: `sent + waited + ttl`, on its own clock. */
export class Lease {
  readonly #id: string;
  readonly name: string;
  /** Below 2^53 in every store. */
  readonly token: number;
  readonly guarantee: "AP" | "CP";
  /** When it was granted, at the earliest. */
  readonly since: number;
  ttlMs = 0;
  /** When the last confirmation arrived. */
  confirmed = 0;
  /** Until when it counts. */
  end = 0;
  loss: LeaseLost | undefined;
  /** It was released, or is being released. */
  isReleased = false;
  /** The outcome of its release. */
  released: Promise<void> | undefined;
  /** How long its lock stays taken from the grant on. */
  atLeastMs = 0;
  /** The command of the present stream that has attached it. */
  attachedBy: bigint | undefined;
  /** Aborts with the loss, or when the holder has to stop for another reason. */
  readonly stop = new AbortController();
  readonly #listeners: ((loss: LeaseLost) => void)[] = [];

  constructor(
    grant: Grant,
    sent: number,
    /** Whether it is renewed. */
    public isKept: boolean,
    readonly logger: Logger,
    /** Is called once with the loss, before the listeners. */
    readonly lost: (lease: Lease, loss: LeaseLost) => void,
  ) {
    this.#id = grant.leaseId;
    this.name = grant.name;
    this.token = Number(grant.fencingToken);
    this.guarantee = grant.guarantee === Guarantee.CP ? "CP" : "AP";
    this.since = sent + milliseconds(grant.waited);
    this.#confirm(this.since, milliseconds(grant.ttl));
    setMaxListeners(0, this.stop.signal);
  }

  /** A secret: whoever knows it can release the lock. An accessor, so that no log of the lock or the lease shows it. */
  get id(): string {
    return this.#id;
  }

  /** When its loss is told, so early that its holder can stop in time. */
  get tellAt(): number {
    return this.end - Math.min(this.ttlMs / 20, 250);
  }

  /** The loss by the clock, also if no timer has run yet because the event loop was blocked. */
  lossNow(): LeaseLost | undefined {
    if (now() >= this.end) this.lose("unrenewed");
    return this.loss;
  }

  /** A command that was sent at `sent` has renewed the lease. It never shortens it. */
  renewed(sent: number, ttlMs: number): void {
    if (ttlMs > 0 && !this.lossNow()) this.#confirm(sent, ttlMs);
  }

  #confirm(from: number, ttlMs: number): void {
    this.ttlMs = ttlMs;
    this.confirmed = now();
    // Two clocks may differ by a thousandth.
    this.end = Math.max(this.end, from + ttlMs - Math.max(ttlMs / 1000, 5));
  }

  lose(cause: LossCause): void {
    if (this.isReleased || this.loss) return;
    const loss = new LeaseLost(cause);
    this.loss = loss;
    this.lost(this, loss);
    this.stop.abort(loss);
    for (const listener of this.#listeners) this.#tell(listener, loss);
  }

  onLost(listener: (loss: LeaseLost) => unknown): void {
    if (this.loss) this.#tell(listener, this.loss);
    else this.#listeners.push(listener);
  }

  #tell(listener: (loss: LeaseLost) => unknown, loss: LeaseLost): void {
    queueMicrotask(() => void guard(this.logger, () => listener(loss)));
  }
}
