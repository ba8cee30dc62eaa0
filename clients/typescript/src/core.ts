import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { CallOptions } from "@connectrpc/connect";
import { Acquisition, Gate, type LockRequest } from "./acquire.js";
import { type Connection, Connections, cancelled, link } from "./connections.js";
import { ClientClosed, FencepostError, incomplete, LeaseLost, type LossCause, typed, Unavailable } from "./errors.js";
import type { AcquireRequest, Lease as Grant } from "./gen/fencepost/v1/lock_pb.js";
import { KeepAlive, Lease } from "./keep-alive.js";
import { checkMs, type Settings, type WaitOptions } from "./options.js";
import { traced } from "./telemetry.js";
import { duration, milliseconds, now, pauses } from "./time.js";

const RELEASE_MS = 5_000;
const CLOSE_MS = 5_000;
/** What one ReleaseAll takes. */
const RELEASES = 64;

/** What all requests for locks have. */
type RequestFields = Pick<AcquireRequest, "namespace" | "owner" | "ttl" | "metadata" | "requestId">;

/** A release that is about to be sent. */
interface Release {
  id: string;
  limitMs: number;
  resolve: () => void;
  reject: (error: unknown) => void;
}

/** What the client, its locks and its elections share: the connections, and the leases that are held. */
export class Core {
  readonly connections: Connections;
  readonly #keepAlive: KeepAlive;
  readonly #held = new Set<Lease>();
  readonly #background = new Set<Promise<void>>();
  readonly #releases: Release[] = [];
  readonly #gate = new Gate();
  readonly #closed = new AbortController();
  #closing: Promise<void> | undefined;

  constructor(readonly settings: Settings) {
    this.connections = new Connections(settings);
    this.#keepAlive = new KeepAlive(this.connections, settings.logger);
  }

  /** Takes locks with the request that `build` makes, and keeps their leases. A trace shows `names`. */
  async take(
    names: readonly string[],
    options: WaitOptions,
    build: (fields: RequestFields) => LockRequest["send"],
  ): Promise<Lease[]> {
    const { waitMs = 0, renew = true, signal } = options;
    checkMs("waitMs", waitMs, 0);
    const { signal: stop = this.#closed.signal, unlink } = link([signal, this.#closed.signal]);
    const request = {
      count: names.length,
      send: build(this.#fields(options)),
      release: async (grants: Grant[]) => void (await Promise.all(grants.map(({ leaseId }) => this.#release(leaseId)))),
    };
    const acquisition = new Acquisition(this.connections, request, (work) => this.#goOn(work), this.#gate);
    const attributes = {
      "fencepost.namespace": this.settings.namespace,
      "fencepost.lock": names.join(", "),
      "fencepost.wait_ms": waitMs,
    };
    try {
      return await traced("fencepost.acquire", attributes, async (event) => {
        const { grants, sent } = await acquisition.run(waitMs, stop);
        if (stop.aborted) {
          this.#goOn(request.release(grants).catch(() => undefined));
          throw stop.reason;
        }
        return grants.map((grant) => this.#hold(new Lease(grant, sent), renew, event));
      });
    } finally {
      unlink();
    }
  }

  /** The fields of all requests for locks. */
  #fields({ ttlMs = this.settings.ttlMs, owner = this.settings.owner, metadata = {} }: WaitOptions): RequestFields {
    checkMs("ttlMs", ttlMs, 1);
    const ttl = ttlMs === undefined ? undefined : duration(ttlMs);
    return { namespace: this.settings.namespace, owner, ttl, metadata, requestId: randomUUID() };
  }

  /** Releases leases within a deadline. Rejects if one was lost, or if no server confirms it. */
  async release(leases: readonly Lease[]): Promise<void> {
    const held = leases.filter((lease) => !lease.lossNow() && !lease.isReleased);
    const released = held.map((lease) => {
      this.#forget(lease);
      lease.finish();
      return this.#release(lease.id, Math.min(RELEASE_MS, lease.end - now()));
    });
    const failed = (await Promise.allSettled(released)).find((outcome) => outcome.status === "rejected");
    const cause: FencepostError | undefined = failed?.reason ?? leases.find(({ loss }) => loss)?.loss;
    if (!cause || cause instanceof LeaseLost) return cause && Promise.reject(cause);
    const message = `the release was not confirmed, so that the lock stays held until its lease ends: ${cause.message}`;
    throw new Unavailable(cause.reason, message, { cause });
  }

  /** Extends a lease. */
  renew(lease: Lease, ttlMs: number): Promise<void> {
    checkMs("ttlMs", ttlMs, 1);
    return this.connections.call(async ({ locks }, options) => {
      const sent = now();
      const answer = await locks.renew({ leaseId: lease.id, ttl: duration(ttlMs) }, options);
      if (!answer.lease) throw incomplete();
      lease.renewed(sent, milliseconds(answer.lease.ttl));
    });
  }

  /** The messages of a stream, which is opened again when it fails, at the next server if that helps. */
  async *stream<M>(
    open: (to: Connection, options: CallOptions) => AsyncIterable<M>,
    signal?: AbortSignal,
  ): AsyncGenerator<M, void, undefined> {
    const stop = link([signal, this.#closed.signal]);
    let pause = pauses();
    try {
      for (;;) {
        stop.signal?.throwIfAborted();
        const connection = this.connections.forWait();
        const call = link([stop.signal], cancelled);
        let hasWorked = false;
        connection.calls++;
        try {
          for await (const message of open(connection, { signal: call.signal })) {
            hasWorked = true;
            pause = pauses();
            yield message;
          }
        } catch (cause) {
          stop.signal?.throwIfAborted();
          // A proxy ends streams that are silent for long, and says nothing about its server with that.
          const error = hasWorked ? typed(cause, connection.address.text) : this.connections.failed(connection, cause);
          if (error.retry === "never") throw error;
        } finally {
          call.abort();
          call.unlink();
          connection.end();
        }
        await sleep(pause.next().value, undefined, stop).catch(() => undefined);
      }
    } finally {
      stop.unlink();
    }
  }

  throwIfClosed(): void {
    this.#closed.signal.throwIfAborted();
  }

  /** See `Client.close`. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const { logger } = this.settings;
    this.#closed.abort(new ClientClosed("CLIENT_CLOSED", "the client is closed"));
    for (const lease of [...this.#held]) {
      lease.stop.abort(this.#closed.signal.reason);
      this.#goOn(this.release([lease]).catch((error: Error) => logger.warn(`fencepost: ${error.message}`)));
    }
    const limit = new AbortController();
    // A call that was cancelled right now adds its undoing a moment later.
    const all = sleep(0).then(() => Promise.all(this.#background));
    await Promise.race([all, sleep(CLOSE_MS, undefined, limit).catch(() => undefined)]);
    limit.abort();
    this.connections.close();
  }

  #hold(lease: Lease, renew: boolean, event: (name: string, cause: LossCause) => void): Lease {
    this.#held.add(lease);
    if (renew) this.#keepAlive.add(lease);
    lease.onLost(({ loss }) => {
      this.#forget(lease);
      // The server may count on it for longer. Nobody waits for the outcome, because the lease ends with its TTL.
      if (loss === "unrenewed") this.#goOn(this.#release(lease.id).catch(() => undefined));
      event("lost", loss);
      this.settings.logger.warn(`fencepost: the lease of "${lease.name}" with token ${lease.token} is lost: ${loss}`);
    });
    return lease;
  }

  #forget(lease: Lease): void {
    this.#held.delete(lease);
    this.#keepAlive.remove(lease);
  }

  /** Work that `close` waits for. It does not reject. */
  #goOn(work: Promise<void>): void {
    this.#background.add(work);
    void work.finally(() => this.#background.delete(work));
  }

  /** Sends a release. Those of the same moment share a call. */
  #release(id: string, limitMs = RELEASE_MS): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#releases.push({ id, limitMs, resolve, reject }) > 1) return;
      queueMicrotask(() => {
        const all = this.#releases.splice(0);
        while (all.length > 0) void this.#sendReleases(all.splice(0, RELEASES));
      });
    });
  }

  async #sendReleases(releases: Release[]): Promise<void> {
    const leaseIds = releases.map(({ id }) => id);
    const limitMs = Math.max(...releases.map((release) => release.limitMs));
    const [leaseId, ...others] = leaseIds;
    try {
      const { results } =
        others.length > 0
          ? await this.connections.call(({ locks }, options) => locks.releaseAll({ leaseIds }, options), limitMs)
          : await this.connections
              .call(({ locks }, options) => locks.release({ leaseId }, options), limitMs)
              .then(() => ({ results: [{ reason: "", cause: "" }] }));
      for (const [index, { resolve, reject }] of releases.entries()) {
        const result = results[index];
        if (!result) reject(incomplete());
        else if (result.reason === "LEASE_LOST") reject(new LeaseLost(result.cause as LossCause));
        else if (result.reason) reject(new FencepostError(result.reason, `the server answered ${result.reason}`));
        else resolve();
      }
    } catch (error) {
      for (const { reject } of releases) reject(error);
    }
  }
}
