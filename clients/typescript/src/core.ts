import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import type { CallOptions } from "@connectrpc/connect";
import { Command, type Event, type Message, type Outcome } from "./command.js";
import type { Connection } from "./connection.js";
import { ClientClosed, type FencepostError, incomplete, LeaseLost, typed, Unavailable, unanswered } from "./errors.js";
import type { AcquireRequest } from "./gen/fencepost/v1/lock_pb.js";
import { Lease } from "./lease.js";
import { type AcquireOptions, checkMs, type Settings } from "./options.js";
import { CALL_MS, RELEASE_MS, Session, TRIES } from "./session.js";
import { traced } from "./telemetry.js";
import { duration, milliseconds, now, pauses } from "./time.js";

const CLOSE_MS = 5_000;
/** How long a wait may go on after its end, and one call may take. */
const ATTEMPT_MS = 5_000;
/** How many messages of a watch may be unread before it begins anew. */
const UNREAD = 1_000;

/** What all requests for locks have. */
export type RequestFields = Pick<AcquireRequest, "namespace" | "owner" | "ttl" | "metadata" | "requestId" | "wait">;

/** What the client, its locks and its elections share. */
export class Core {
  readonly session: Session;
  #closed: ClientClosed | undefined;
  #closing: Promise<void> | undefined;

  constructor(readonly settings: Settings) {
    this.session = new Session(settings);
  }

  /** Takes locks by the command that `build` makes, and keeps their leases. A trace shows `names`. */
  async take(
    names: readonly string[],
    { ttlMs = this.settings.ttlMs, owner = this.settings.owner, metadata = {}, ...options }: Omit<AcquireOptions, "mode">,
    build: (fields: RequestFields, keep: boolean) => Message,
  ): Promise<Lease[]> {
    const { waitMs = 0, atLeastMs = 0, renew = true, signal } = options;
    checkMs("waitMs", waitMs, 0);
    checkMs("atLeastMs", atLeastMs, 0);
    checkMs("ttlMs", ttlMs, 1);
    const { namespace, addresses } = this.settings;
    const ttl = ttlMs === undefined ? undefined : duration(ttlMs);
    const fields = { namespace, owner, ttl, metadata, requestId: randomUUID() };
    const attributes = { "fencepost.namespace": namespace, "fencepost.lock": names.join(", "), "fencepost.wait_ms": waitMs };
    return traced("fencepost.acquire", attributes, async (event) => {
      this.throwIfClosed();
      signal?.throwIfAborted();
      const begin = now();
      const waits = waitMs > 0;
      const read = (outcome: Outcome, sent: number) => {
        const leases = this.#granted(outcome, sent, renew, command.id, event);
        for (const lease of leases) lease.atLeastMs = atLeastMs;
        if (leases.length === names.length) return leases;
        this.#giveBack(leases);
        throw incomplete();
      };
      const command: Command<Lease[]> = new Command((wait) => build({ ...fields, wait }, renew), {
        kind: waits ? "wait" : "call",
        waitEnd: waits ? begin + waitMs : undefined,
        end: begin + (waits ? waitMs + ATTEMPT_MS : CALL_MS),
        tries: waits ? undefined : Math.max(TRIES, addresses.length),
        read,
        undo: (leases) => this.#giveBack(leases),
      });
      const abandon = () => {
        command.reject(signal?.reason);
        this.session.abandon(command as Command);
      };
      // Node warns from 11 listeners on, and as many calls may share a signal as there are calls.
      if (signal) setMaxListeners(0, signal);
      signal?.addEventListener("abort", abandon);
      try {
        const leases = await this.session.send(command);
        // They may have come in the moment of the abort.
        if (signal?.aborted || this.#closed) this.#giveBack(leases);
        signal?.throwIfAborted();
        this.throwIfClosed();
        if (atLeastMs > 0) await this.#keepAtLeast(leases, atLeastMs);
        return leases;
      } finally {
        signal?.removeEventListener("abort", abandon);
      }
    });
  }

  #granted(
    { case: kind, value }: Outcome,
    sent: number,
    keep: boolean,
    id: bigint,
    event: (n: string, c: string) => void,
  ): Lease[] {
    const grants = kind === "acquire" ? [value.lease] : kind === "acquireAll" ? value.leases : [];
    const lost = (lease: Lease, loss: LeaseLost) => {
      this.session.lost(lease, loss);
      event("lost", loss.loss);
      this.settings.logger.warn(`fencepost: the lease of "${lease.name}" with token ${lease.token} is lost: ${loss.loss}`);
    };
    return grants
      .filter((grant) => grant !== undefined)
      .map((grant) => {
        const lease = new Lease(grant, sent, keep, this.settings.logger, lost);
        this.session.hold(lease, id);
        return lease;
      });
  }

  #giveBack(leases: readonly Lease[]): void {
    for (const lease of leases) this.session.release(lease).catch(() => undefined);
  }

  /** Lets leases live so long after their grants, also if this process ends. A server never shortens a lease. */
  async #keepAtLeast(leases: readonly Lease[], atLeastMs: number): Promise<void> {
    try {
      for (const lease of leases.filter(({ ttlMs }) => ttlMs < atLeastMs)) {
        const { ttlMs } = lease;
        await this.renew(lease, atLeastMs);
        await this.renew(lease, ttlMs);
      }
    } catch (error) {
      for (const lease of leases) lease.atLeastMs = 0;
      this.#giveBack(leases);
      throw error;
    }
  }

  /** Releases leases within a deadline. Rejects if one was lost, or if no server confirms it. */
  async release(leases: readonly Lease[]): Promise<void> {
    const outcomes = await Promise.allSettled(leases.map((lease) => (lease.released ??= this.#release(lease))));
    const errors = outcomes.flatMap((outcome) => (outcome.status === "rejected" ? [outcome.reason] : []));
    if (errors.length > 0) throw errors.find((error) => !(error instanceof LeaseLost)) ?? errors[0];
  }

  async #release(lease: Lease): Promise<void> {
    const loss = lease.lossNow();
    if (loss) throw loss;
    try {
      await this.session.release(lease, Math.min(RELEASE_MS, lease.end - now()));
    } catch (error) {
      if (error instanceof LeaseLost) throw error;
      const cause = error as FencepostError;
      const message = `the release was not confirmed, so that the lock stays held until its lease ends: ${cause.message}`;
      throw new Unavailable(cause.reason, message, { cause });
    }
  }

  /** Extends a lease. */
  renew(lease: Lease, ttlMs: number): Promise<void> {
    checkMs("ttlMs", ttlMs, 1);
    return this.request({ case: "renew", value: { leaseId: lease.id, ttl: duration(ttlMs) } }, ({ case: kind, value }, sent) => {
      const given = kind === "renew" ? milliseconds(value.lease?.ttl) : 0;
      if (given <= 0) throw incomplete();
      lease.renewed(sent, given);
    });
  }

  /** The answer to a command that does not wait, within 10 s. */
  async request<T = void>(message: Message, read?: (outcome: Outcome, sent: number) => T, limitMs = CALL_MS): Promise<T> {
    this.throwIfClosed();
    return this.session.send(new Command(() => message, { end: now() + limitMs, read }));
  }

  /** The answer to a call that sessions do not have, on the connection of the stream. */
  async call<T>(send: (connection: Connection, options: CallOptions) => Promise<T>): Promise<T> {
    const end = now() + CALL_MS;
    for (const pause of pauses()) {
      // That does nothing, but its result shows that the stream is open.
      await this.request({ case: "cancel", value: {} }, undefined, end - now());
      const { connection } = this.session;
      let error = unanswered("the stream has ended");
      const keepsAlive = setTimeout(() => undefined, ATTEMPT_MS); // The connection does not.
      try {
        const limitMs = Math.ceil(Math.min(ATTEMPT_MS, Math.max(end - now(), 1)));
        if (connection) return await send(connection, connection.options(limitMs));
      } catch (cause) {
        error = typed(cause, connection?.address.text ?? "");
      } finally {
        clearTimeout(keepsAlive);
      }
      if (error.retry !== "elsewhere" || now() + pause >= end) throw error;
      await sleep(pause);
    }
    throw unanswered("no server answered in time");
  }

  /** The messages of a watch. It begins anew with the full state if nobody reads them. */
  async *follow<M>(
    message: Message,
    pick: (event: Event) => M,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<M, void, undefined> {
    if (signal) setMaxListeners(0, signal);
    for (;;) {
      this.throwIfClosed();
      signal?.throwIfAborted();
      const unread: M[] = [];
      let [isOver, wake] = [false, () => {}];
      const watched = (event: Event) => {
        if (unread.push(pick(event)) > UNREAD) command.resolve(undefined);
        wake();
      };
      const command = new Command<unknown>(() => message, { kind: "watch", watched });
      const stop = () => command.reject(signal?.reason);
      const ended = () => {
        isOver = true;
        wake();
      };
      signal?.addEventListener("abort", stop);
      this.session.send(command).then(ended, ended);
      try {
        while (!isOver) {
          for (let next = unread.shift(); next !== undefined && !isOver; next = unread.shift()) yield next;
          if (!isOver) await new Promise<void>((more) => (wake = more));
        }
        await command.promise;
      } finally {
        signal?.removeEventListener("abort", stop);
        this.session.unwatch(command);
      }
    }
  }

  throwIfClosed(): void {
    if (this.#closed) throw this.#closed;
  }

  /** See `Client.close`. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const { session } = this;
    const reason = new ClientClosed("CLIENT_CLOSED", "the client is closed");
    this.#closed = reason;
    const end = now() + CLOSE_MS;
    for (const command of [...session.pending.values()]) {
      if (["own", "release"].includes(command.kind)) continue;
      command.reject(reason);
      if (command.properties.undo) session.abandon(command);
      else session.unwatch(command);
    }
    for (const lease of [...session.held]) {
      lease.stop.abort(reason);
      const warn = (error: Error) => this.settings.logger.warn(`fencepost: ${error.message}`);
      this.release([lease]).catch(warn);
    }
    // What was granted right now is given back a moment later.
    do await sleep(5);
    while (now() < end && [...session.pending.values()].some(({ kind }) => kind !== "own"));
    session.end(reason);
  }
}
