import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import type { Duration } from "@bufbuild/protobuf/wkt";
import {
  type SessionEvent_CommandResult as CommandResult,
  type SessionCommand,
  SessionCommandSchema,
  type SessionEvent,
} from "./gen/fencepost/v1/lock_pb.js";
import { duration, pauses } from "./time.js";

/** How many bytes a message has at most, unless one command has more. */
const MESSAGE_BYTES = 15 * 1024;
/** The longest wait that one command asks for. It asks for less where the namespace allows less. */
const LONGEST_WAIT_MS = 86_400_000;
/** Which part of the commands that a server takes at once may be of each kind. `own` are those of one stream. */
const SHARES = { wait: 0.7, call: 0.2, release: 0.9, watch: Number.POSITIVE_INFINITY, own: Number.POSITIVE_INFINITY };

type Kind = keyof typeof SHARES;
const KINDS = Object.keys(SHARES) as Kind[];
export type Message = NonNullable<MessageInitShape<typeof SessionCommandSchema>["command"]>;
export type Outcome = CommandResult["outcome"];
export type Event = SessionEvent["event"];

/** What a command is besides its message. */
interface Properties<T> {
  kind?: Kind;
  /** When it fails without a result. */
  end?: number;
  /** When the wait of an acquire is over. */
  waitEnd?: number | undefined;
  /** How many streams may end before it fails. */
  tries?: number;
  /** Makes its value of its result. */
  read?: (outcome: Outcome, sent: number) => T;
  /** Gives the value back if nobody waits for it any more. */
  undo?: (value: T) => void;
  /** Takes the messages of a watch. */
  watched?: (event: Event) => void;
}

/** What is sent on one stream after the other until it has a result. */
export class Command<T = unknown> {
  id = 0n;
  kind: Kind;
  end: number;
  tries: number;
  /** When the present stream has sent it; not if it was refused. */
  sentAt: number | undefined;
  wasSent = false;
  isQueued = false;
  isAbandoned = false;
  wasSuperseded = false;
  longestMs = LONGEST_WAIT_MS;
  pause = pauses();
  resolve!: (value: T) => void;
  reject!: (error: unknown) => void;
  readonly promise: Promise<T>;

  constructor(
    readonly message: (wait: Duration | undefined) => Message,
    readonly properties: Properties<T> = {},
  ) {
    this.kind = properties.kind ?? "call";
    this.end = properties.end ?? Number.POSITIVE_INFINITY;
    this.tries = properties.tries ?? Number.POSITIVE_INFINITY;
    this.promise = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.promise.catch(() => undefined);
  }

  /** When its wait is over, while somebody waits. One that is abandoned only finds what it was granted. */
  get waitEnd(): number | undefined {
    return this.isAbandoned ? undefined : this.properties.waitEnd;
  }

  encode(time: number): SessionCommand {
    const { waitEnd } = this;
    const wait = waitEnd === undefined ? undefined : duration(Math.min(Math.max(waitEnd - time, 1), this.longestMs));
    return create(SessionCommandSchema, { id: this.id, command: this.message(wait) });
  }
}

/** The commands without a result: those that are to be sent on this stream, and those that were. */
export class Commands {
  readonly pending = new Map<bigint, Command>();
  /** How many the server takes at once. */
  limit = 1_000;
  #queue: Command[] = [];
  /** What waits until others of its kind have results, and those. */
  #later = of<Command[]>(() => []);
  #inFlight = of(() => new Set<bigint>());
  #lastId = 0n;

  add(command: Command): void {
    command.id = ++this.#lastId;
    this.pending.set(command.id, command);
    this.enqueue(command);
  }

  enqueue(command: Command): void {
    if (!command.isQueued) this.#queue.push(command);
    command.isQueued = true;
  }

  /** Puts what `add` adds before what is queued. */
  first(add: () => void): void {
    const queue = this.#queue.splice(0);
    add();
    this.#queue = this.#queue.concat(queue);
  }

  /** A command has a result, also if nobody waits for it any more. Returns whether others wait for its place. */
  answered(id: bigint): boolean {
    return KINDS.some((kind) => this.#inFlight[kind].delete(id) && this.#later[kind].length > 0);
  }

  /** Whether the server owes an answer. */
  get isOwed(): boolean {
    return this.#inFlight.call.size + this.#inFlight.release.size + this.#inFlight.own.size > 0;
  }

  /** Begins a stream, which sends all that is pending. */
  reset(): void {
    this.#inFlight = of(() => new Set<bigint>());
    this.#later = of<Command[]>(() => []);
    this.#queue = [...this.pending.values()];
    for (const command of this.#queue) command.isQueued = true;
  }

  isLive(command: Command): boolean {
    return this.pending.get(command.id) === command && command.sentAt === undefined;
  }

  /** Takes the commands of the next message out of the queue. `isFit` refuses one by the number of its bytes. */
  batch(time: number, isFit: (command: Command, bytes: number) => boolean): SessionCommand[] {
    const batch: SessionCommand[] = [];
    let [bytes, at] = [0, 0];
    this.#queue = KINDS.flatMap((kind) => this.#admitted(kind)).concat(this.#queue);
    for (; at < this.#queue.length; at++) {
      const command = this.#queue[at] as Command;
      if (!this.isLive(command)) continue;
      if (this.#room(command.kind) <= 0) {
        this.#later[command.kind].push(command);
        continue;
      }
      const encoded = command.encode(time);
      const size = toBinary(SessionCommandSchema, encoded).length + 4;
      if (!isFit(command, size)) continue;
      if (bytes + size > MESSAGE_BYTES && bytes > 0) break;
      bytes += size;
      this.#inFlight[command.kind].add(command.id);
      command.sentAt = time;
      command.wasSent = true;
      command.isQueued = false;
      batch.push(encoded);
    }
    this.#queue.splice(0, at);
    return batch;
  }

  /** Those that waited and have room now. Those that are over meanwhile take none. */
  #admitted(kind: Kind): Command[] {
    const admitted: Command[] = [];
    const later = this.#later[kind];
    while (later.length > 0 && admitted.length < this.#room(kind)) {
      const command = later.shift() as Command;
      if (this.isLive(command)) admitted.push(command);
    }
    return admitted;
  }

  #room(kind: Kind): number {
    return Math.max(Math.floor(this.limit * SHARES[kind]), 1) - this.#inFlight[kind].size;
  }
}

/** One of something for each kind. */
function of<T>(make: () => T): { [kind in Kind]: T } {
  return { wait: make(), call: make(), release: make(), watch: make(), own: make() };
}
