import { Code, ConnectError } from "@connectrpc/connect";
import type { Command } from "./command.js";
import { Connection } from "./connection.js";
import { type FencepostError, unanswered } from "./errors.js";
import type { Lease } from "./lease.js";
import type { Address, Settings } from "./options.js";
import { now } from "./time.js";

/**
 * How long a server may take to open a stream, to answer a command that no store delays, and to stop. Such a command is sent when
 * the server was silent for a second while it owes an answer, and for ten at other times.
 */
const [OPENING_MS, ANSWER_MS, DRAINING_MS, OWED_MS, QUIET_MS] = [5_000, 2_500, 3_000, 1_000, 10_000];

/** One stream: its connection, and what the server has said. */
export class Stream extends Connection {
  began = now();
  heard = this.began;
  isOpen = false;
  /** Nobody waits for it. */
  isIdle = false;
  /** It has served a caller or a lease. */
  hasWorked = false;
  drainsAt = Number.POSITIVE_INFINITY;
  beat: Command | undefined;
  beatAt = Number.NEGATIVE_INFINITY;
  /** Why the client ended it. */
  reason: FencepostError | undefined;
  wake = () => {};
  readonly abort = new AbortController();
  /** A command that shows whether the server answers, and until when it may take. */
  probe: Command | undefined;
  #probeEnd = 0;

  constructor(
    address: Address,
    settings: Settings,
    token: string,
    /** How long a server and the network take for what no store delays. */
    public tripMs: number,
  ) {
    super(address, settings, token);
  }

  end(reason: FencepostError): void {
    this.reason ??= reason;
    this.abort.abort(new ConnectError("cancelled", Code.Canceled));
    this.wake();
  }

  /** The event loop was blocked: the server was not silent, and what it said comes next. */
  wasBlocked(time: number): void {
    this.began = this.heard = time;
    this.#probeEnd = time + ANSWER_MS + 2 * this.tripMs;
  }

  /**
   * Ends the stream if it is silent or does not serve. Returns when to look again, whether a beat is due, and whether the server is
   * to be asked whether it answers.
   */
  look(time: number, held: Iterable<Lease>, isOwed: boolean): { next: number; beats: boolean; probes: boolean } {
    const isAlone = this.settings.addresses.length === 1;
    let [due, beatAt] = [this.isOpen ? this.drainsAt + DRAINING_MS : this.began + OPENING_MS, Number.POSITIVE_INFINITY];
    for (const { isKept, ttlMs, confirmed, end } of held) {
      if (!isKept) continue;
      // A lease without a confirmation for half of its time. Another connection to a server that answers does not help.
      const patience = Math.min(Math.max(ttlMs / 3, 1_000), QUIET_MS) + this.tripMs;
      const since = Math.max(this.began, isAlone && this.isOpen ? this.heard : 0);
      due = Math.min(due, Math.max((confirmed + end) / 2, since + patience));
      // The server asks after a third of the TTL. One that is late is not waited for.
      if (this.isOpen && !this.beat) beatAt = Math.min(beatAt, Math.max(confirmed, this.beatAt) + ttlMs * 0.375);
    }
    if (this.probe) due = Math.min(due, this.#probeEnd);
    if (due <= time) this.end(unanswered(`${this.address.text} did not answer in time`));
    const quietUntil = this.heard + (isOwed ? OWED_MS : QUIET_MS);
    const probes = this.isOpen && !this.probe && quietUntil <= time;
    if (probes) this.#probeEnd = time + ANSWER_MS + 2 * this.tripMs;
    return { next: Math.min(due, beatAt, Math.max(quietUntil, time + OWED_MS / 2)), beats: beatAt <= time, probes };
  }
}
