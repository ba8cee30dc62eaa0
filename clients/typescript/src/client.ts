import { AsyncLocalStorage } from "node:async_hooks";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Event } from "./command.js";
import { Core } from "./core.js";
import { Election } from "./election.js";
import { InvalidArgument, incomplete } from "./errors.js";
import type { LockState, LockSummary, ModeSchema, WatchLockResponse } from "./gen/fencepost/v1/lock_pb.js";
import type { Lease } from "./lease.js";
import { holdWhile, Lock, Locks } from "./lock.js";
import { type AcquireOptions, type ClientOptions, checkMs, type LockMode, settings, type WaitOptions } from "./options.js";

/** A lock and how it is taken, for `acquireAll`. */
export interface LockToAcquire {
  /** 1 to 512 bytes of UTF-8 without control characters. */
  name: string;
  /** Default: `exclusive`. */
  mode?: LockMode;
}

/**
 * A client of the lock service. It connects with the first call, sends all over one Session stream, and goes on at the next address
 * when a server fails. It does not keep the process alive while nothing is held or waited for.
 */
export class Client implements AsyncDisposable {
  readonly #core: Core;
  /** The locks that the present asynchronous context has entered with `reentrant`. */
  readonly #entered = new AsyncLocalStorage<ReadonlyMap<string, Lock>>();

  /**
   * @param addresses `host:port`, `https://host:port` or `unix:/path`; several of one service as a list, or separated by commas.
   * Default: `FENCEPOST_ADDR`, or `127.0.0.1:50051`.
   * @throws {@link InvalidArgument}
   */
  constructor(addresses?: string | readonly string[], options: ClientOptions = {}) {
    checkMs("ttlMs", options.ttlMs, 1);
    this.#core = new Core(settings(addresses, options));
  }

  /**
   * Takes a lock and returns it held. Release it with `await using` or {@link Lock.release}.
   *
   * Rejects with {@link LockHeld} or {@link WaitTimeout}, with {@link Unavailable} if no server could serve it, and with the reason
   * of `signal` if that aborts before the grant; a grant that was under way is then given back.
   */
  async acquire(name: string, options: AcquireOptions = {}): Promise<Lock> {
    const { mode, reentrant = false, owner } = options;
    if (reentrant && owner === undefined) {
      throw new InvalidArgument("INVALID_FIELD", "reentrant: give an owner that names the task, or use `using`");
    }
    const leases = await this.#core.take([name], options, (fields, keep) => ({
      case: "acquire",
      value: { request: { ...fields, name, reentrant, mode: modeOf(mode) }, keep },
    }));
    return new Lock(this.#core, leases[0] as Lease);
  }

  /**
   * Takes a lock as {@link Client.acquire}, runs `work`, and releases the lock however `work` ends. Resolves to what `work` returns.
   *
   * Rejects with the error of `work`, and with {@link InvalidArgument} if it returns a generator, which would run without the lock. If `work` succeeded, rejects with {@link LeaseLost} if the lease was lost meanwhile, and with
   * {@link Unavailable} if the release was not confirmed. `work` has to stop by itself when `lock.signal` aborts.
   */
  using<T>(name: string, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  using<T>(name: string, options: AcquireOptions, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  async using<T>(name: string, ...rest: [Work<T>] | [AcquireOptions, Work<T>]): Promise<T> {
    const [options, work] = rest.length === 1 ? [{}, rest[0]] : rest;
    if (!options.reentrant || options.owner !== undefined) {
      return holdWhile(await this.acquire(name, options), options.signal, work);
    }
    const outer = this.#entered.getStore();
    const key = JSON.stringify([name, options.mode ?? "exclusive"]);
    const entered = outer?.get(key);
    if (entered?.isHeld) return work(entered);
    const lock = await this.acquire(name, { ...options, reentrant: false });
    const inside = new Map(outer).set(key, lock);
    return holdWhile(lock, options.signal, (lock) => this.#entered.run(inside, () => work(lock)));
  }

  /**
   * Takes 1 to 64 locks with distinct names, all or none, in the order of their names, so that no two callers block each other.
   * Rejects as {@link Client.acquire}.
   */
  async acquireAll(locks: readonly (string | LockToAcquire)[], options: WaitOptions = {}): Promise<Locks> {
    const wanted = locks.map((lock) => (typeof lock === "string" ? { name: lock } : lock));
    const [first, ...others] = wanted;
    if (!first) throw new InvalidArgument("INVALID_FIELD", "locks: give 1 to 64");
    if (others.length === 0) return new Locks(this.#core, [await this.acquire(first.name, { ...options, ...first })]);
    const all = wanted.map(({ name, mode }) => ({ name, mode: modeOf(mode) }));
    const names = wanted.map(({ name }) => name);
    const leases = await this.#core.take(names, options, (fields, keep) => ({
      case: "acquireAll",
      value: { request: { ...fields, locks: all }, keep },
    }));
    const held = leases.map((lease) => new Lock(this.#core, lease));
    return new Locks(this.#core, held);
  }

  /** Takes several locks as {@link Client.acquireAll}, and runs `work` as {@link Client.using}. */
  async usingAll<T>(
    locks: readonly (string | LockToAcquire)[],
    options: WaitOptions,
    work: (locks: Locks) => T | Promise<T>,
  ): Promise<T> {
    return holdWhile(await this.acquireAll(locks, options), options.signal, work);
  }

  /** The election of this name, which is the exclusive lock of the same name. Nothing is sent. */
  election(name: string): Election {
    return new Election(this.#core, name);
  }

  /** Who holds a lock and who waits for it; a lock that nobody uses has no holders and no waiters. Rejects after at most 10 s. */
  get(name: string): Promise<LockState> {
    return this.#core.request({ case: "getLock", value: { namespace: this.#namespace, name } }, ({ case: kind, value }) => {
      if (kind !== "getLock" || !value.lock) throw incomplete();
      return value.lock;
    });
  }

  /** Whether a fencing token holds the lock at this moment. Rejects after at most 10 s. */
  checkToken(name: string, token: number): Promise<boolean> {
    const value = { namespace: this.#namespace, name, fencingToken: BigInt(token) };
    return this.#core.request({ case: "checkToken", value }, ({ case: kind, value }) => {
      if (kind !== "checkToken") throw incomplete();
      return value.held;
    });
  }

  /** The locks in use whose names begin with `prefix`, by name; not a snapshot. Each page is asked for at most 10 s. */
  async *list(prefix = ""): AsyncGenerator<LockSummary, void, undefined> {
    let pageToken = "";
    do {
      const request = { namespace: this.#namespace, prefix, pageToken };
      const page = await this.#core.call(({ locks }, options) => locks.listLocks(request, options));
      yield* page.locks;
      pageToken = page.nextPageToken;
    } while (pageToken);
  }

  /** Takes a lock from the holder with this token, for operators. Rejects with {@link LeaseLost} if it does not hold it. */
  async forceRelease(name: string, token: number): Promise<void> {
    const request = { namespace: this.#namespace, name, fencingToken: BigInt(token) };
    await this.#core.call(({ admin }, options) => admin.forceRelease(request, options));
  }

  get #namespace(): string {
    return this.#core.settings.namespace;
  }

  /**
   * The state of a lock, then each change, and a full state again after a gap. Goes on at the next server when one fails. It throws
   * the reason of `signal` when that aborts.
   */
  watch(name: string, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<WatchLockResponse, void, undefined> {
    const message = { case: "watchLock", value: { namespace: this.#namespace, name } } as const;
    const pick = ({ case: kind, value }: Event) => {
      if (kind !== "watched" || !value.message) throw incomplete();
      return value.message;
    };
    return this.#core.follow(message, pick, signal);
  }

  /**
   * Ends all waits and iterators with {@link ClientClosed}, aborts the signals of held locks, and releases them. Takes at most 5 s.
   * Nothing of the client runs afterwards. A second call gets the outcome of the first.
   */
  close(): Promise<void> {
    return this.#core.close();
  }

  /** {@link Client.close} */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

type Work<T> = (lock: Lock) => T | Promise<T>;

function modeOf(mode: LockMode = "exclusive"): MessageInitShape<typeof ModeSchema> {
  if (mode === "exclusive" || mode === "shared") return { kind: { case: mode, value: {} } };
  return { kind: { case: "semaphore", value: { permits: mode.permits ?? 1, limit: mode.limit } } };
}
