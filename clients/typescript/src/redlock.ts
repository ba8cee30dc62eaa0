/**
 * The API of npm `redlock` 5 over Fencepost. Replace the Redis clients by a {@link Client}, and the import. The README lists what
 * differs.
 *
 * @packageDocumentation
 */
import { EventEmitter } from "node:events";
import type { Client } from "./client.js";
import { FencepostError, LockHeld, WaitTimeout } from "./errors.js";
import type { Lock as HeldLock, Locks } from "./lock.js";

/** Settings with the names, units and defaults of npm `redlock`. */
export interface Settings {
  /** How many attempts follow the first one: with `retryDelay`, how long a call waits. -1: for ever. Default: 10. */
  readonly retryCount: number;
  /** Milliseconds of each attempt. The wait is in a queue, so that nothing is polled. Default: 200. */
  readonly retryDelay: number;
  /** Added to `retryDelay`, in milliseconds. Default: 100. */
  readonly retryJitter: number;
}

const DEFAULTS: Settings = { retryCount: 10, retryDelay: 200, retryJitter: 100 };

/** The signal of {@link Redlock.using}. */
export type RedlockAbortSignal = AbortSignal & {
  /** Why it aborted. */
  error?: Error;
};

/** What a release resolves to. */
export interface ExecutionResult {
  /** Always empty: there are no votes of several Redis servers. */
  readonly attempts: readonly Promise<unknown>[];
}

/** The locks could not be taken, extended or released. Its cause is the error of the client. */
export class ExecutionError extends Error implements ExecutionResult {
  override readonly name: string = "ExecutionError";
  /** Always empty. */
  readonly attempts: readonly Promise<unknown>[] = [];
}

/** A resource is locked, and stayed so for all attempts. npm `redlock` rejects with a plain ExecutionError then. */
export class ResourceLockedError extends ExecutionError {
  override readonly name = "ResourceLockedError";
}

/** Held resources. They are released, or expire at `expiration`. */
export class Lock implements ExecutionResult {
  readonly resources: string[];
  /** The fencing tokens as text, separated by commas. In npm `redlock` it is a secret. */
  readonly value: string;
  /** Always empty. */
  readonly attempts: readonly Promise<unknown>[] = [];
  /** The fencing tokens, in the order of the resources. npm `redlock` has none. */
  readonly tokens: readonly number[];
  /** When the lock ends unless it is extended, as `Date.now()` counts. */
  readonly expiration: number;
  readonly #redlock: Redlock;
  /** @internal */
  readonly held: Locks;

  /** @internal */
  constructor(redlock: Redlock, resources: string[], held: Locks) {
    const locks = [...held];
    this.#redlock = redlock;
    this.resources = resources;
    this.tokens = locks.map(({ token }) => token);
    this.value = this.tokens.join();
    this.expiration = Date.now() + Math.min(...locks.map(({ remainingMs }) => remainingMs));
    this.held = held;
  }

  /** Gives the resources back. */
  release(): Promise<ExecutionResult> {
    return this.#redlock.release(this);
  }

  /** Resolves to a lock of the same resources that ends `duration` milliseconds from now. */
  extend(duration: number): Promise<Lock> {
    return this.#redlock.extend(this, duration);
  }
}

/**
 * Locks in the manner of npm `redlock`, with queues, fencing tokens and one server's guarantee in place of a majority of Redis.
 * Emits `error` with each {@link ExecutionError}, also if it has no listener.
 */
export class Redlock extends EventEmitter<{ error: [ExecutionError] }> {
  readonly #client: Client;
  readonly #settings: Settings;

  /** @param client It is not closed by `quit`. */
  constructor(client: Client, settings: Partial<Settings> = {}) {
    super();
    // Without a listener, Node throws what is emitted as `error`.
    this.on("error", () => undefined);
    this.#client = client;
    this.#settings = { ...DEFAULTS, ...settings };
  }

  /** Locks all resources for `duration` milliseconds, or none. The lock is not extended by itself. */
  acquire(resources: string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.#reporting(async () => {
      const held = await this.#client.acquireAll(resources, { ttlMs: duration, waitMs: this.#waitMs(settings), renew: false });
      return new Lock(this, resources, held);
    });
  }

  /** Gives the resources of a lock back. */
  release(lock: Lock): Promise<ExecutionResult> {
    return this.#reporting(async () => {
      await lock.held.release();
      return { attempts: [] };
    });
  }

  /** Resolves to a lock of the same resources that ends `duration` milliseconds from now. */
  extend(existing: Lock, duration: number): Promise<Lock> {
    return this.#reporting(async () => {
      await Promise.all([...existing.held].map((lock: HeldLock) => lock.extend(duration)));
      return new Lock(this, existing.resources, existing.held);
    });
  }

  /**
   * Runs `routine` while the resources are locked, and extends the lock until it has ended. The signal aborts when the lock is lost,
   * and has the error then.
   */
  using<T>(resources: string[], duration: number, settings: Partial<Settings>, routine: Routine<T>): Promise<T>;
  using<T>(resources: string[], duration: number, routine: Routine<T>): Promise<T>;
  async using<T>(resources: string[], duration: number, ...rest: [Routine<T>] | [Partial<Settings>, Routine<T>]): Promise<T> {
    const [settings, routine] = rest.length === 1 ? [{}, rest[0]] : rest;
    const options = { ttlMs: duration, waitMs: this.#waitMs(settings) };
    const work = (locks: Locks) => {
      const signal: RedlockAbortSignal = locks.signal;
      const fail = () => {
        signal.error = this.#report(new ExecutionError(signal.reason.message, { cause: signal.reason }));
      };
      // Before `routine` adds its listeners, which read the error.
      signal.addEventListener("abort", fail);
      if (signal.aborted) fail();
      return routine(signal);
    };
    return this.#reporting(() => this.#client.usingAll(resources, options, work));
  }

  /** Does nothing: the client is closed by whoever made it. */
  async quit(): Promise<void> {}

  /** Turns the errors of the client into those of this API. */
  async #reporting<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof FencepostError)) throw error;
      const isLocked = error instanceof LockHeld || error instanceof WaitTimeout;
      throw this.#report(new (isLocked ? ResourceLockedError : ExecutionError)(error.message, { cause: error }));
    }
  }

  #report(error: ExecutionError): ExecutionError {
    try {
      this.emit("error", error);
    } catch {
      // A listener that fails ends nothing.
    }
    return error;
  }

  #waitMs(settings: Partial<Settings> = {}): number {
    const { retryCount, retryDelay, retryJitter } = { ...this.#settings, ...settings };
    return retryCount < 0 ? Number.POSITIVE_INFINITY : retryCount * (retryDelay + retryJitter / 2);
  }
}

export default Redlock;

/** The work of {@link Redlock.using}. */
export type Routine<T> = (signal: RedlockAbortSignal) => Promise<T>;
