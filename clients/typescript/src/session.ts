import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Command, Commands, type Event, type Message, type Outcome } from "./command.js";
import type { Connection } from "./connection.js";
import {
  type ClientClosed,
  type FencepostError,
  InvalidArgument,
  type LeaseLost,
  type LossCause,
  ofCommand,
  typed,
  Unauthenticated,
  unanswered,
  WaitTimeout,
} from "./errors.js";
import type {
  SessionEvent_CommandResult as CommandResult,
  SessionEvent_Kept as Kept,
  SessionCommand,
} from "./gen/fencepost/v1/lock_pb.js";
import type { Lease } from "./lease.js";
import type { Settings } from "./options.js";
import { Stream } from "./stream.js";
import { duration, milliseconds, now, pauses } from "./time.js";

const VERSION = "0.1.0"; // Shown to operators.

/** How long a command goes on without an answer, an acquire that was abandoned is undone, and a release is repeated. */
export const [CALL_MS, UNDO_MS, RELEASE_MS] = [10_000, 15_000, 5_000];
/** How many streams a try may see end, and how many tokens may be refused in a row. */
export const TRIES = 3;
/** For how long a server keeps the places of waits and grants that were not sent when a stream breaks off. */
const GRACE_MS = 10_000;
/** A stream without anything to do is ended, so that a client that was dropped leaves nothing behind. */
const IDLE_MS = 10_000;
/** It looks at the clock at least so often, because timers stand still while the machine is suspended. */
const TICK_MS = 500;
/** For how long a token that was good is tried again, because its file may be replaced a little later. */
const TOKEN_GRACE_MS = 5_000;
/** How many bytes one command has at most, and the ids of leases that one command attaches. */
const [COMMAND_BYTES, ATTACHED_BYTES] = [60 * 1024, 12 * 1024];
/** A store that did not answer a server may have granted the request. */
const UNKNOWN = ["BACKEND_UNAVAILABLE", "NO_QUORUM", "INCOMPLETE"];
/**
 * The stream of a client: a Session to one server at a time, and at the next address when that does not answer. A new stream
 * attaches the leases again, and sends each command that has no result once more: callers see nothing of it, and waits keep their places for the
 * grace.
 */
export class Session {
  /** By which a server finds it again on the next stream, and how many streams have begun. */
  readonly #id = randomUUID();
  #streams = 0n;
  readonly held = new Set<Lease>();
  readonly #commands = new Commands();
  readonly pending = this.#commands.pending;
  #stream: Stream | undefined;
  #index = 0;
  #isRunning = false;
  #isFlushing = false;
  #ended: FencepostError | undefined;
  #lastError: FencepostError | undefined;
  /** The token of the last stream that was opened, and since when others are refused. */
  #accepted: string | undefined;
  readonly #refused = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #tickAt = Number.POSITIVE_INFINITY;

  constructor(readonly settings: Settings) {}

  /** Sends a command until it has a result or its time is over. */
  send<T>(command: Command<T>): Promise<T> {
    if (this.#ended) {
      command.reject(this.#ended);
      return command.promise;
    }
    this.#commands.add(command as Command);
    this.#flush();
    this.#lookBy(Math.min(command.end, now() + TICK_MS));
    this.#timer?.ref();
    if (this.#stream) this.#stream.isIdle = false;
    if (!this.#isRunning) void this.#run();
    return command.promise;
  }

  /** Keeps a lease, which a command has attached. */
  hold(lease: Lease, attachedBy: bigint): void {
    if (lease.isKept) lease.attachedBy = attachedBy;
    this.held.add(lease);
    this.#lookBy(lease.tellAt);
  }

  /** Releases a lease. */
  async release(lease: Lease, limitMs = RELEASE_MS): Promise<void> {
    this.held.delete(lease);
    lease.isReleased = true;
    const time = now();
    const keepFor = lease.since + lease.atLeastMs - time;
    const value = { leaseId: lease.id, ...(keepFor > 0 && { keepFor: duration(keepFor) }) };
    const released = this.send(new Command(() => ({ case: "release", value }), { kind: "release", end: time + limitMs }));
    try {
      await released;
    } catch (error) {
      if ((error as FencepostError).reason !== "UNSUPPORTED" || keepFor <= 0) throw error;
      // A store that cannot keep the lock taken keeps the lease.
      const renew = { leaseId: lease.id, ttl: duration(keepFor) };
      await this.send(new Command(() => ({ case: "renew", value: renew }), { kind: "release", end: time + limitMs }));
    }
  }

  /** Keeps a lease no more that was lost. */
  lost(lease: Lease, { loss }: LeaseLost): void {
    this.held.delete(lease);
    // The server may count on it for longer. Nobody waits for the outcome, because the lease ends with its TTL.
    if (loss === "unrenewed") this.release(lease).catch(() => undefined);
    if (!this.#isBusy) this.#timer?.unref();
  }

  /** Renews a lease no more. */
  drop(lease: Lease): void {
    if (!this.held.has(lease) || !lease.isKept) return;
    lease.isKept = false;
    lease.attachedBy = undefined;
    this.settings.logger.warn(`fencepost: "${lease.name}" was dropped without a release, and is not renewed any more`);
    this.#own({ case: "detach", value: { leaseIds: [lease.id] } });
  }

  /** Takes an acquire back, whose caller is gone. */
  abandon(command: Command): void {
    if (!command.wasSent) this.forget(command);
    if (!this.pending.has(command.id) || command.isAbandoned) return;
    command.isAbandoned = true;
    command.kind = "call";
    command.end = now() + UNDO_MS;
    command.tries = Number.POSITIVE_INFINITY;
    if (command.sentAt === undefined) this.#again(command, 0);
    else this.#own({ case: "cancel", value: { id: command.id } });
  }

  /** Ends a watch. */
  unwatch(command: Command): void {
    if (!this.pending.has(command.id)) return;
    if (command.sentAt !== undefined) this.#own({ case: "cancel", value: { id: command.id } });
    this.forget(command);
  }

  forget(command: Command): void {
    this.pending.delete(command.id);
    if (!this.#isBusy) this.#timer?.unref();
  }

  /** The connection of the stream, if there is one. */
  get connection(): Connection | undefined {
    return this.#stream;
  }

  end(reason: ClientClosed): void {
    this.#ended = reason;
    for (const command of this.pending.values()) command.reject(reason);
    this.pending.clear();
    this.held.clear();
    clearTimeout(this.#timer);
    this.#stream?.end(reason);
  }

  get #isBusy(): boolean {
    return this.pending.size + this.held.size > 0;
  }

  // The streams, one after the other.

  async #run(): Promise<void> {
    this.#isRunning = true;
    let [failures, pause, tripMs] = [0, pauses(), 0];
    while (this.#isBusy) {
      const { addresses, logger } = this.settings;
      const address = addresses[this.#index] ?? addresses[0];
      let [stream, token, error] = [undefined as Stream | undefined, "", undefined as FencepostError | undefined];
      try {
        token = await this.settings.token();
        stream = new Stream(address, this.settings, token, tripMs);
        error = await this.#serve(stream);
        tripMs = stream.tripMs;
      } catch (cause) {
        error = typed(cause, address.text);
      }
      if (this.#ended) break;
      if (stream?.hasWorked || (stream?.isOpen && now() - stream.began > 1_000)) [failures, pause] = [0, pauses()];
      const wasIdle = stream?.isIdle ?? false;
      this.#lastError = error;
      this.#reset(error, !wasIdle && (await this.#isFinal(error, token, ++failures)), wasIdle);
      if (wasIdle) continue;
      if (!(error instanceof Unauthenticated)) this.#index = (this.#index + 1) % addresses.length;
      logger.info(
        `fencepost: the stream to ${address.text} ended, the next is to ${addresses[this.#index]?.text}: ${error.message}`,
      );
      const pauseMs = error.pauseMs ?? pause.next().value;
      if (failures <= Math.max(1, addresses.length - 1) && !error.pauseMs) continue;
      const shortest = [...this.held].reduce((least, { ttlMs }) => Math.min(least, ttlMs), Number.POSITIVE_INFINITY);
      await sleep(Math.min(pauseMs, shortest / 10), undefined, { ref: false });
    }
    this.#isRunning = false;
  }

  /** Opens a stream, and returns how it ended. */
  async #serve(stream: Stream): Promise<FencepostError> {
    this.#stream = stream;
    this.#commands.first(() => {
      const kept = [...this.held].filter(({ isKept }) => isKept);
      const client = { clientName: "fencepost-typescript", clientVersion: VERSION };
      const resumed = { sessionId: this.#id, number: ++this.#streams, grace: duration(GRACE_MS) };
      this.#own({ case: "open", value: { ...client, ...resumed } });
      this.#attach(kept);
      if (kept.length > 0) this.#beat(stream);
    });
    this.#lookBy(now() + TICK_MS);
    try {
      const options = { ...stream.options(), signal: stream.abort.signal };
      for await (const { events } of stream.locks.session(this.#requests(stream), options)) {
        stream.heard = now();
        for (const { event } of events) this.#event(stream, event);
      }
      return stream.reason ?? unanswered(`${stream.address.text} ended the stream`);
    } catch (cause) {
      return stream.reason ?? (await stream.failed(cause, stream.isOpen));
    } finally {
      stream.close();
    }
  }

  /** Prepares the next stream, and fails what is not sent again. */
  #reset(error: FencepostError, isFinal: boolean, wasIdle: boolean): void {
    this.#stream = undefined;
    for (const lease of this.held) lease.attachedBy = undefined;
    for (const command of [...this.pending.values()]) {
      command.sentAt = undefined;
      if (command.kind === "own") this.forget(command);
      else if (isFinal || (!wasIdle && --command.tries <= 0)) this.#over(command, error);
    }
    this.#commands.reset();
  }

  /** Whether no repetition can help. */
  async #isFinal(error: FencepostError, token: string, failures: number): Promise<boolean> {
    if (error.reason === "TLS") return failures >= this.settings.addresses.length;
    if (!(error instanceof Unauthenticated)) return error.retry === "never";
    const refusedAt = this.#refused.get(token) ?? now();
    this.#refused.set(token, refusedAt);
    const isGood = token === this.#accepted && now() < refusedAt + TOKEN_GRACE_MS;
    const current = await this.settings.token().catch(() => undefined);
    // A function may give another one each time.
    return this.#refused.size >= TRIES || (current === token && !isGood);
  }

  // What is sent.

  async *#requests(stream: Stream): AsyncGenerator<{ commands: SessionCommand[] }> {
    while (!stream.reason) {
      const isServing = this.#stream === stream && stream.drainsAt === Number.POSITIVE_INFINITY;
      const commands = isServing ? this.#commands.batch(now(), (command, bytes) => this.#isFit(command, bytes)) : [];
      if (commands.length > 0) yield { commands };
      else await new Promise<void>((wake) => (stream.wake = wake));
    }
  }

  /** A server would end the stream for one that is too large. */
  #isFit(command: Command, bytes: number): boolean {
    if (bytes <= COMMAND_BYTES) return true;
    this.#over(command, new InvalidArgument("INVALID_FIELD", `the request must have at most ${COMMAND_BYTES} bytes`));
    return false;
  }

  /** Sends a command of this stream alone. */
  #own(message: Message, read?: (outcome: Outcome) => void): Command | undefined {
    if (!this.#stream || this.#ended) return undefined;
    const command = new Command(() => message, { kind: "own", read });
    this.#commands.add(command as Command);
    this.#flush();
    return command as Command;
  }

  #attach(leases: Lease[]): void {
    for (let rest = leases; rest.length > 0; ) {
      let [count, bytes] = [0, 0];
      while (count < rest.length && bytes < ATTACHED_BYTES) bytes += (rest[count++] as Lease).id.length + 4;
      const some = rest.slice(0, count);
      rest = rest.slice(count);
      const command = this.#own({ case: "attach", value: { leaseIds: some.map(({ id }) => id) } }, () => {
        for (const lease of some) if (lease.isKept) lease.attachedBy = command?.id;
      });
    }
  }

  /** Sends what gathers until all events of this moment are processed. */
  #flush(): void {
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    setImmediate(() => {
      this.#isFlushing = false;
      this.#stream?.wake();
    });
  }

  /** Sends a command once more. */
  #again(command: Command, pauseMs: number): void {
    const send = () => {
      if (!this.#commands.isLive(command)) return;
      this.#commands.enqueue(command);
      this.#flush();
    };
    if (pauseMs > 0) setTimeout(send, pauseMs).unref();
    else send();
  }

  // What the server says.

  #event(stream: Stream, event: Event): void {
    if (event.case === "result") this.#result(stream, event.value);
    else if (event.case === "watched" || event.case === "observed") this.pending.get(event.value.id)?.properties.watched?.(event);
    else if (event.case === "kept") this.#kept(stream, event.value);
    else if (event.case === "lost") this.#lost(event.value);
    // It does not know of a beat that is on its way.
    else if (event.case === "ask" && !stream.beat) this.#beat(stream);
    else if (event.case === "draining") stream.drainsAt = stream.heard;
    else if (event.case === "opened") {
      stream.isOpen = true;
      this.#commands.limit = event.value.commandLimit || this.#commands.limit;
      this.#accepted = stream.token;
      this.#refused.clear();
    }
  }

  #result(stream: Stream, { id, outcome }: CommandResult): void {
    if (this.#commands.answered(id)) this.#flush();
    const command = this.pending.get(id);
    if (command?.sentAt === undefined) return;
    const sent = command.sentAt;
    command.sentAt = undefined;
    if (command.kind === "own") stream.tripMs = Math.max(stream.heard - sent, stream.tripMs / 2);
    else stream.hasWorked = true;
    if (stream.probe === command) stream.probe = undefined;
    if (outcome.case === "error") {
      this.#failed(stream, command, ofCommand(outcome.value));
      return;
    }
    const { read, undo } = command.properties;
    try {
      const value = read?.(outcome, sent);
      if (command.isAbandoned) undo?.(value);
      else command.resolve(value);
    } catch (error) {
      command.reject(error);
    }
    this.forget(command);
  }

  /** Decides what becomes of a command that the server refused. */
  #failed(stream: Stream, command: Command, error: FencepostError): void {
    const { waitEnd } = command;
    const left = (waitEnd ?? now()) - now();
    if (command.kind === "own") {
      this.#ownFailed(stream, command);
    } else if (error instanceof Unauthenticated) {
      stream.end(error); // The next one shows the token of that time.
    } else if (error.reason === "DRAINING" || (stream.drainsAt <= now() && error.reason === "INVALID_FIELD")) {
      stream.drainsAt = Math.min(stream.drainsAt, now()); // The next stream sends it.
    } else if (error.reason === "SUPERSEDED" && !command.isAbandoned && !command.wasSuperseded) {
      command.wasSuperseded = true; // By the same command of an earlier stream.
      this.#again(command, 0);
    } else if (error instanceof WaitTimeout && left > 50) {
      this.#again(command, 0); // The next command goes on with the wait.
    } else if (error.field === "wait" && waitEnd !== undefined && command.longestMs > 60_000) {
      command.longestMs /= 60;
      this.#again(command, 0);
    } else {
      const pauseMs = error.pauseMs ?? command.pause.next().value;
      const isPatient = command.kind !== "call" || command.isAbandoned;
      const isInTime = now() + pauseMs < Math.min(command.end, waitEnd ?? command.end);
      if (error.retry !== "never" && isPatient && isInTime) this.#again(command, pauseMs);
      else this.#over(command, error);
    }
  }

  #ownFailed(stream: Stream, command: Command): void {
    this.forget(command);
    if (stream.beat === command) stream.beat = undefined;
    const message = command.message(undefined);
    if (message.case !== "attach") return;
    const attach = () => {
      const ids = new Set(message.value?.leaseIds);
      if (this.#stream !== stream) return;
      // Each alone: the server refuses all for one that may not be attached.
      for (const lease of this.held) if (lease.isKept && ids.has(lease.id)) this.#attach([lease]);
    };
    setTimeout(attach, 1_000).unref();
  }

  /** Ends a command with an error. What an acquire may have been granted is given back. */
  #over(command: Command, error: FencepostError): void {
    command.reject(error);
    const isUnknown = error.retry === "elsewhere" || UNKNOWN.includes(error.reason);
    if (command.properties.undo && command.wasSent && isUnknown && !command.isAbandoned) this.abandon(command);
    else this.forget(command);
  }

  #beat(stream: Stream): void {
    stream.beatAt = now();
    stream.beat = this.#own({ case: "keepAlive", value: {} });
  }

  #kept(stream: Stream, { id, notRenewed, newTtls }: Kept): void {
    this.#commands.answered(id);
    const sent = this.pending.get(id)?.sentAt;
    this.pending.delete(id);
    stream.beat = undefined;
    if (sent === undefined) return;
    stream.hasWorked = true;
    const failed = new Set(notRenewed.map(({ leaseId }) => leaseId));
    const ttls = new Map(newTtls.map(({ leaseId, ttl }) => [leaseId, milliseconds(ttl)]));
    for (const lease of this.held) {
      // One that was attached later may not have been renewed.
      const counts = lease.attachedBy !== undefined && lease.attachedBy < id && !failed.has(lease.id);
      if (counts) lease.renewed(sent, ttls.get(lease.id) ?? lease.ttlMs);
    }
    for (const one of notRenewed) if (one.reason === "LEASE_LOST") this.#lost(one);
  }

  /** For other reasons than LEASE_LOST a lease ends with the TTL that it was last given. */
  #lost({ leaseId, reason, cause }: { leaseId: string; reason: string; cause: string }): void {
    for (const lease of [...this.held].filter(({ id }) => id === leaseId)) {
      if (reason === "LEASE_LOST") lease.lose(cause as LossCause);
      else lease.attachedBy = undefined;
    }
  }

  // The clock.

  #lookBy(at: number): void {
    if (at >= this.#tickAt || this.#ended) return;
    clearTimeout(this.#timer);
    this.#tickAt = at;
    this.#timer = setTimeout(() => this.#tick(), Math.max(at - now(), 5));
  }

  #tick(): void {
    const time = now();
    const stream = this.#stream;
    const wasBlocked = time > this.#tickAt + 1_000;
    if (wasBlocked) stream?.wasBlocked(time);
    this.#tickAt = Number.POSITIVE_INFINITY;
    let next = time + TICK_MS;
    for (const lease of this.held) {
      if (lease.tellAt <= time) lease.lose("unrenewed");
      else next = Math.min(next, lease.tellAt);
    }
    for (const command of wasBlocked ? [] : [...this.pending.values()]) {
      const isLate = command.waitEnd !== undefined && command.waitEnd <= time && !command.wasSent;
      if (command.kind === "own") continue;
      if (isLate || command.end <= time) this.#over(command, this.#unanswered());
      else next = Math.min(next, command.end);
    }
    if (this.#isBusy) {
      this.#lookBy(stream ? Math.min(next, this.#look(stream, time)) : next);
    } else if (stream?.isIdle) {
      stream.end(unanswered("it was idle"));
    } else if (stream) {
      stream.isIdle = true;
      this.#lookBy(time + IDLE_MS);
      this.#timer?.unref();
    }
  }

  #look(stream: Stream, time: number): number {
    const { next, beats, probes } = stream.look(time, this.held, this.#commands.isOwed);
    if (beats) this.#beat(stream);
    // A server answers that at once, also while its store is slow.
    if (probes) stream.probe = this.#own({ case: "cancel", value: {} });
    return next;
  }

  #unanswered(): FencepostError {
    return (!this.#stream?.isOpen && this.#lastError) || unanswered("no server answered in time");
  }
}
