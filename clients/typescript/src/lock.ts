import type { Core } from "./core.js";
import { InvalidArgument, LeaseLost } from "./errors.js";
import type { Lease } from "./lease.js";
import { now } from "./time.js";

/** What is held: one lock or several. */
abstract class Held implements AsyncDisposable {
  /**
   * Aborts with {@link LeaseLost} when the lease, or the first of several, is or may be lost, up to 250 ms before its end, and with {@link ClientClosed} when the
   * client is closed; in `using` also with the reason of the caller's signal. It does not abort when the lock is released. Reading this
   * property reads the clock, so it is right after a blocked event loop too.
   */
  abstract get signal(): AbortSignal;

  /** @internal */
  constructor(
    /** @internal */ readonly core: Core,
    /** @internal */ readonly leases: readonly Lease[],
  ) {}

  /** Whether all leases count now. Reads the clock, so it is right after a blocked event loop too. */
  get isHeld(): boolean {
    return this.leases.every((lease) => !lease.isReleased && !lease.lossNow());
  }

  /**
   * Releases what is held. Takes at most 5 s, and no longer than the lease lives. A second call gets the outcome of the first.
   * Rejects with {@link LeaseLost} if a lease had ended before, and with {@link Unavailable} if no server confirmed the release: the
   * lock is then free when its lease ends.
   */
  release(): Promise<void> {
    return this.core.release(this.leases);
  }

  /** As `release`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }
}

/** What is done when nothing refers to a lock any more. */
const dropped = new FinalizationRegistry<() => void>((drop) => drop());

/**
 * A held lock. Its lease is renewed until it is released or lost, the client is closed, or nothing refers to the lock any more: then
 * it is logged that the release is missing, and the lease ends with its TTL.
 */
export class Lock extends Held {
  /** The name of the lock. */
  readonly name: string;
  /** Rises with every grant of the lock, for the protected resource to compare; below 2^53. */
  readonly token: number;
  /** What the store promises when it fails: `CP` keeps the exclusion, `AP` may lose it. */
  readonly guarantee: "AP" | "CP";

  /** @internal */
  constructor(
    core: Core,
    /** @internal */ readonly lease: Lease,
  ) {
    super(core, [lease]);
    this.name = lease.name;
    this.token = lease.token;
    this.guarantee = lease.guarantee;
    dropped.register(this, () => core.session.drop(lease), lease);
  }

  override get signal(): AbortSignal {
    this.lease.lossNow();
    return this.lease.stop.signal;
  }

  /** Milliseconds until the lease may be lost if no renewal succeeds; 0 once it is lost or released. Reads the clock. */
  get remainingMs(): number {
    return this.isHeld ? this.lease.end - now() : 0;
  }

  /**
   * Returns the fencing token, or throws {@link LeaseLost} if the lease is or may be lost, or was released. Reads the clock. The
   * process can be paused right after it, so the resource has to compare tokens.
   */
  check(): number {
    const loss = this.lease.lossNow();
    if (loss) throw loss;
    if (this.lease.isReleased) throw new LeaseLost("released", "the lock was released");
    return this.token;
  }

  /**
   * Calls back once when the lease is lost, in a microtask of its own; at once if it is lost already. It is not called when the lock
   * is released. A listener that fails is logged.
   */
  onLost(listener: (loss: LeaseLost) => unknown): void {
    this.lease.onLost(listener);
  }

  /** Extends the lease to `ttlMs` milliseconds from now, and later renewals too. Rejects with {@link LeaseLost}. */
  async extend(ttlMs: number): Promise<void> {
    this.check();
    await this.core.renew(this.lease, ttlMs);
  }

  /** Replaces the metadata that operators see. Rejects with {@link LeaseLost}. */
  async updateMetadata(metadata: Record<string, string>): Promise<void> {
    this.check();
    await this.core.request({ case: "updateMetadata", value: { leaseId: this.lease.id, metadata } });
  }
}

/** A held leadership. `release` resigns. */
export class Leadership extends Lock {
  /** Replaces the value that observers see, at most 4 KiB. Rejects with {@link LeaseLost}. */
  async proclaim(value: string): Promise<void> {
    this.check();
    await this.core.request({ case: "proclaim", value: { leaseId: this.lease.id, value } });
  }
}

/** Several held locks, taken all or none. */
export class Locks extends Held implements Iterable<Lock> {
  readonly #stop = new AbortController();

  /** @internal */
  constructor(
    core: Core,
    /** In the order in which they were asked for. */
    readonly all: readonly Lock[],
  ) {
    super(
      core,
      all.map(({ lease }) => lease),
    );
    for (const { signal } of all) signal.addEventListener("abort", () => this.#stop.abort(signal.reason), { once: true });
  }

  override get signal(): AbortSignal {
    for (const lease of this.leases) lease.lossNow();
    return this.#stop.signal;
  }

  [Symbol.iterator](): Iterator<Lock> {
    return this.all[Symbol.iterator]();
  }

  /** The fencing tokens in the order of the locks, or throws {@link LeaseLost} if one is lost. See {@link Lock.check}. */
  check(): number[] {
    return this.all.map((lock) => lock.check());
  }
}

const GENERATORS = ["[object Generator]", "[object AsyncGenerator]"];

/**
 * Runs `work` while `held` is held, and releases it however `work` ends. The error of `work` counts more than that of the release,
 * which is logged then; but an AbortError after a loss becomes the {@link LeaseLost}.
 */
export async function holdWhile<H extends Held, T>(
  held: H,
  signal: AbortSignal | undefined,
  work: (held: H) => T | Promise<T>,
): Promise<T> {
  const cancel = () => {
    for (const { stop } of held.leases) stop.abort(signal?.reason);
  };
  // Only `work` may refer to what is held.
  for (const lease of held.leases) dropped.unregister(lease);
  if (signal?.aborted) cancel();
  signal?.addEventListener("abort", cancel);
  let result: T;
  try {
    result = await work(held);
    // Its body has not run yet, and would run without the lock.
    const kind = Object.prototype.toString.call(result);
    if (GENERATORS.includes(kind)) throw new InvalidArgument("INVALID_FIELD", `the work returned ${kind}, which would run later`);
  } catch (error) {
    const loss = held.leases.find((lease) => lease.loss)?.loss;
    await held.release().catch((failed: Error) => {
      if (!(failed instanceof LeaseLost)) held.core.settings.logger.warn(`fencepost: ${failed.message}`);
    });
    throw loss && (error as Error | undefined)?.name === "AbortError" ? loss : error;
  } finally {
    signal?.removeEventListener("abort", cancel);
  }
  await held.release();
  return result;
}
