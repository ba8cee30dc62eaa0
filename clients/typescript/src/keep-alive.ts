import { setMaxListeners } from "node:events";
import { PassThrough } from "node:stream";
import { Code, ConnectError } from "@connectrpc/connect";
import { type Connection, type Connections, cancelled } from "./connections.js";
import { LeaseLost, type LossCause } from "./errors.js";
import { type Lease as Grant, Guarantee, type KeepAliveResponse } from "./gen/fencepost/v1/lock_pb.js";
import type { Logger } from "./options.js";
import { milliseconds, now, pauses } from "./time.js";

/** What one stream may name: the server takes 1,000 leases, and 64 KiB with what surrounds the ids. */
const MAX_LEASES = 1_000;
const MAX_ID_BYTES = 48 * 1024;
/** Most leases are released before a beat has to name them. */
const FIRST_BEAT_MS = 500;
/** The interval of looks at what is due: beats that are due together are one. */
const TICK_MS = 100;
/** The longest time between beats, which is below the idle limit of proxies, and between looks at the clock. */
const MAX_INTERVAL_MS = 30_000;

/** A lease that was granted, and until when the client may count on it: `sent + waited + ttl`, on its own clock. */
export class Lease {
  readonly #id: string;
  readonly name: string;
  /** Below 2^53 in every store. */
  readonly token: number;
  readonly guarantee: "AP" | "CP";
  ttlMs: number;
  /** When the last call was sent that a server has confirmed. */
  confirmed: number;
  end: number;
  loss: LeaseLost | undefined;
  /** It was released, or is being released. */
  isReleased = false;
  /** The present stream has named it. */
  isNamed = false;
  /** When the answer with the grant arrived. */
  readonly since = now();
  /** Aborts with the loss, or when the holder has to stop for another reason. */
  readonly stop = new AbortController();
  readonly #listeners: ((loss: LeaseLost) => void)[] = [];
  #timer: NodeJS.Timeout | undefined;

  constructor(grant: Grant, sent: number) {
    this.#id = grant.leaseId;
    this.name = grant.name;
    this.token = Number(grant.fencingToken);
    this.guarantee = grant.guarantee === Guarantee.CP ? "CP" : "AP";
    this.ttlMs = milliseconds(grant.ttl);
    this.confirmed = sent + milliseconds(grant.waited);
    this.end = this.confirmed + this.ttlMs;
    setMaxListeners(0, this.stop.signal);
    this.#watchClock();
  }

  /** A secret: whoever knows it can release the lock. An accessor, so that no log of the lock or the lease shows it. */
  get id(): string {
    return this.#id;
  }

  /** The loss by the clock, also if its timer has not run yet because the event loop was blocked. */
  lossNow(): LeaseLost | undefined {
    if (!this.isReleased && now() >= this.end) this.lose("unrenewed");
    return this.loss;
  }

  /** A call that was sent at `sent` has renewed the lease. It never shortens it. */
  renewed(sent: number, ttlMs: number): void {
    if (this.lossNow()) return;
    this.ttlMs = ttlMs;
    this.confirmed = Math.max(this.confirmed, sent);
    this.end = Math.max(this.end, sent + ttlMs);
  }

  lose(cause: LossCause): void {
    if (this.isReleased || this.loss) return;
    clearTimeout(this.#timer);
    const loss = new LeaseLost(cause);
    this.loss = loss;
    this.stop.abort(loss);
    for (const listener of this.#listeners) queueMicrotask(() => listener(loss));
  }

  onLost(listener: (loss: LeaseLost) => void): void {
    const { loss } = this;
    if (loss) queueMicrotask(() => listener(loss));
    else this.#listeners.push(listener);
  }

  /** The lease is about to be released. */
  finish(): void {
    this.isReleased = true;
    clearTimeout(this.#timer);
  }

  /** setTimeout calls back at once for more than 24.8 days, and stands still while the machine is suspended. */
  #watchClock(): void {
    const left = Math.min(Math.max(this.end - now(), 0), MAX_INTERVAL_MS);
    this.#timer = setTimeout(() => this.lossNow() ?? this.#watchClock(), left);
  }
}

/** Keeps leases alive over KeepAlive streams. */
export class KeepAlive {
  readonly #streams = new Set<BeatStream>();
  #ticks: NodeJS.Timeout | undefined;

  constructor(
    readonly connections: Connections,
    readonly logger: Logger,
  ) {}

  add(lease: Lease): void {
    const stream = [...this.#streams].find((stream) => stream.fits(lease)) ?? new BeatStream(this);
    this.#streams.add(stream.add(lease));
    this.#ticks ??= setInterval(() => {
      for (const stream of this.#streams) stream.tick();
    }, TICK_MS);
  }

  remove(lease: Lease): void {
    for (const stream of this.#streams) {
      if (stream.remove(lease)) this.#streams.delete(stream);
    }
    if (this.#streams.size > 0) return;
    clearInterval(this.#ticks);
    this.#ticks = undefined;
  }
}

/** Some of the leases, and the stream that keeps them while it works. */
class BeatStream {
  readonly #owner: KeepAlive;
  readonly #leases = new Map<string, Lease>();
  #idBytes = 0;
  #link: { connection: Connection; requests: PassThrough; abort: AbortController; opened: number } | undefined;
  /** The beat without an answer. */
  #beat: { number: bigint; sent: number; leases: Lease[] } | undefined;
  #beats = 0n;
  #lastBeat = 0;
  #pauses = pauses();
  #openAfter = 0;
  #problem = "";

  constructor(owner: KeepAlive) {
    this.#owner = owner;
  }

  fits({ id }: Lease): boolean {
    return this.#leases.size < MAX_LEASES && this.#idBytes + id.length <= MAX_ID_BYTES;
  }

  add(lease: Lease): this {
    this.#leases.set(lease.id, lease);
    this.#idBytes += lease.id.length;
    return this;
  }

  /** Returns whether that was the last one. */
  remove({ id }: Lease): boolean {
    if (!this.#leases.delete(id)) return false;
    this.#idBytes -= id.length;
    if (this.#leases.size === 0) this.#shut();
    return this.#leases.size === 0;
  }

  tick(): void {
    const leases = [...this.#leases.values()];
    const time = now();
    const { connections } = this.#owner;
    // A lease without a confirmation for half of its TTL: another connection is tried, and one more each sixth of the TTL.
    const isStale = ({ confirmed, ttlMs }: Lease) =>
      time >= Math.max(confirmed + ttlMs / 2, (this.#link?.opened ?? time) + Math.max(ttlMs / 6, 500));
    if (this.#link && leases.some(isStale)) {
      connections.replace(this.#link.connection, "no renewal was confirmed in time");
      this.#failed("no renewal was confirmed in time");
    }
    // The server asks at a third of the TTL.
    const isDue = ({ confirmed, ttlMs, since, isNamed }: Lease) =>
      time >=
      (isNamed
        ? Math.max(this.#lastBeat, confirmed) + Math.min(ttlMs * 0.375, MAX_INTERVAL_MS)
        : since + Math.min(FIRST_BEAT_MS, ttlMs / 4));
    if (this.#beat || !leases.some(isDue)) return;
    if (!this.#link && this.#openAfter <= time) void this.#read(connections.current());
    if (this.#link) this.#send(this.#link.requests);
  }

  #send(requests: PassThrough): void {
    const leases = [...this.#leases.values()].filter(({ loss }) => !loss);
    for (const lease of leases) lease.isNamed = true;
    this.#lastBeat = now();
    this.#beat = { number: ++this.#beats, sent: this.#lastBeat, leases };
    requests.write({ beat: this.#beats, leaseIds: leases.map(({ id }) => id) });
  }

  async #read(connection: Connection): Promise<void> {
    const link = { connection, requests: new PassThrough({ objectMode: true }), abort: new AbortController(), opened: now() };
    this.#link = link;
    connection.calls++;
    try {
      for await (const response of connection.locks.keepAlive(link.requests, { signal: link.abort.signal })) {
        if (this.#link !== link) return;
        this.#received(response);
      }
      throw new ConnectError("the server ended the stream", Code.Unavailable);
    } catch (cause) {
      if (this.#link === link) this.#failed(this.#owner.connections.failed(connection, cause).message);
    } finally {
      connection.end();
    }
  }

  #received({ event }: KeepAliveResponse): void {
    if (event.case === "lost" && event.value.reason === "LEASE_LOST") {
      // A lease that is not kept for another reason ends with its TTL.
      this.#leases.get(event.value.leaseId)?.lose(event.value.cause as LossCause);
    } else if (event.case === "ask" && !this.#beat && this.#link) {
      // The first one comes before the server has read the beat that is under way.
      this.#send(this.#link.requests);
    } else if (event.case === "kept" && event.value.beat === this.#beat?.number) {
      const { sent, leases } = this.#beat;
      this.#beat = undefined;
      for (const [index, ttl] of event.value.ttls.entries())
        if (milliseconds(ttl) > 0) leases[index]?.renewed(sent, milliseconds(ttl));
      this.#pauses = pauses();
      if (this.#problem) this.#owner.logger.info(`fencepost: leases are renewed again, after: ${this.#problem}`);
      this.#problem = "";
    }
  }

  #failed(problem: string): void {
    this.#problem = problem;
    this.#shut();
    this.#openAfter = now() + this.#pauses.next().value;
    for (const lease of this.#leases.values()) lease.isNamed = false;
  }

  #shut(): void {
    this.#link?.requests.end();
    this.#link?.abort.abort(cancelled());
    this.#link = undefined;
    this.#beat = undefined;
  }
}
