// Speaks the protocol of the scenario suite over the package: commands as JSON lines on stdin, events on stdout.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import * as fencepost from "fencepost-client";
import { LockService } from "../dist/cjs/gen/fencepost/v1/lock_pb.js";

interface Command {
  op: string;
  id: string;
  name: string;
  names?: string[];
  ttl?: number;
  wait?: number;
  mode?: fencepost.LockMode;
  metadata?: Record<string, string>;
  reentrant?: boolean;
  how: string;
  ms: number;
  value: string;
  count: number;
  at_least?: number;
  locks: number;
  bare?: boolean;
}

/** A block that runs: how it is left, and the lock inside. */
interface Block {
  cancel: AbortController;
  leave: PromiseWithResolversLike;
  held?: fencepost.Lock | fencepost.Locks;
  isSyncThrow?: boolean;
}
type PromiseWithResolversLike = { promise: Promise<void>; resolve: () => void; reject: (error: unknown) => void };

class Boom extends Error {}

const kinds: [new (...args: never[]) => Error, string][] = [
  [Boom, "boom"],
  [fencepost.LockHeld, "held"],
  [fencepost.WaitTimeout, "timeout"],
  [fencepost.LeaseLost, "lost"],
  [fencepost.PermissionDenied, "denied"],
  [fencepost.Unauthenticated, "unauthenticated"],
  [fencepost.Unavailable, "unavailable"],
  [fencepost.Overloaded, "overloaded"],
  [fencepost.InvalidArgument, "invalid"],
  [fencepost.ClientClosed, "closed"],
];
const blocks = new Map<string, Block>();
let held: fencepost.Lock[] = [];
let shared: fencepost.Client | undefined;
const client = () => (shared ??= new fencepost.Client(undefined, { logger: { info: console.error, warn: console.error } }));
const emit = (event: string, id?: string, fields = {}) => process.stdout.write(`${JSON.stringify({ event, id, ...fields })}\n`);

function busy(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

function deferred(): PromiseWithResolversLike {
  let resolve = () => {};
  let reject: (error: unknown) => void = () => {};
  const promise = new Promise<void>((yes, no) => ([resolve, reject] = [yes, no]));
  promise.catch(() => undefined);
  return { promise, resolve, reject };
}

function options({ ttl, wait, mode, metadata, reentrant }: Command, signal: AbortSignal): fencepost.AcquireOptions {
  return { ttlMs: ttl, waitMs: wait === -1 ? Number.POSITIVE_INFINITY : wait, mode, metadata, reentrant, signal };
}

/** What the block does: it says what it holds, and stays until it is told to leave, or the lock's signal aborts. */
function inside(id: string, block: Block): (lock: fencepost.Lock | fencepost.Locks) => Promise<void> {
  return (lock) => {
    block.held = lock;
    const { signal } = lock;
    const tokens = lock.check();
    emit("granted", id, typeof tokens === "number" ? { token: tokens } : { token: tokens[0], tokens });
    signal.addEventListener("abort", () => {
      if (signal.reason instanceof fencepost.LeaseLost) emit("lost", id, { cause: signal.reason.loss });
      block.leave.reject(signal.reason);
    });
    return block.leave.promise;
  };
}

async function run(command: Command, work: (block: Block) => Promise<unknown>): Promise<void> {
  const { id, name } = command;
  const block: Block = { cancel: new AbortController(), leave: deferred() };
  blocks.set(id, block);
  try {
    await work(block);
    const boom = () => {
      throw new Boom("sync_throw");
    };
    if (block.isSyncThrow) await client().using(name, { waitMs: 5_000 }, boom);
    emit("released", id);
  } catch (error) {
    const cancelled = block.cancel.signal.aborted && error === block.cancel.signal.reason;
    const kind = cancelled ? "cancelled" : (kinds.find(([type]) => error instanceof type)?.[1] ?? "other");
    const reason = error instanceof fencepost.FencepostError ? error.reason : "";
    emit("failed", id, { kind: reason === "SUPERSEDED" ? "superseded" : kind, reason, message: String(error) });
  }
  blocks.delete(id);
}

const handlers: Record<string, (command: Command) => unknown> = {
  acquire: (command) =>
    run(command, (block) => {
      const all = options(command, block.cancel.signal);
      if (!command.names) return client().using(command.name, all, inside(command.id, block));
      return client().usingAll(
        command.names.map((name) => ({ name, mode: command.mode })),
        all,
        inside(command.id, block),
      );
    }),
  campaign: (command) =>
    run(command, async (block) => {
      const { mode: _, metadata: __, reentrant: ___, ...all } = options(command, block.cancel.signal);
      const { signal } = block.cancel;
      const leadership = await client()
        .election(command.name)
        .campaign({ ...all, value: command.value });
      signal.addEventListener("abort", () => block.leave.reject(signal.reason));
      // Not `await using`, which makes a SuppressedError of a loss and of the release that fails with it.
      const left = await inside(command.id, block)(leadership).catch((error) => ({ error }));
      const released = await leadership.release().catch((error) => ({ error }));
      const failed = left ?? released;
      if (failed) throw failed.error;
    }),
  observe: (command) =>
    run(command, async ({ cancel: { signal } }) => {
      for await (const { token, value } of client().election(command.name).observe({ signal })) {
        emit("leader", command.id, { token, value });
      }
    }),
  release: ({ id }) => blocks.get(id)?.leave.resolve(),
  boom: ({ id, how }) => {
    const block = blocks.get(id);
    if (!block) return;
    block.isSyncThrow = how === "sync_throw";
    if (block.isSyncThrow) block.leave.resolve();
    else block.leave.reject(new Boom(how));
  },
  cancel: ({ id }) => blocks.get(id)?.cancel.abort(new Error("cancelled")),
  check: ({ id }) => {
    try {
      const token = blocks.get(id)?.held?.check();
      emit(token === undefined ? "notheld" : "ok", id, { token: Array.isArray(token) ? token[0] : token });
    } catch {
      emit("notheld", id);
    }
  },
  block: ({ id, ms }) => {
    busy(ms);
    emit("ok", id);
  },
  slow_callback: ({ id, ms }) => {
    const lock = blocks.get(id)?.held;
    for (const one of lock instanceof Object && "all" in lock ? lock : lock ? [lock] : []) one.onLost(() => busy(ms));
    emit("ok", id);
  },
  hold: async ({ id, names = [], ttl }) => {
    const outcomes = await Promise.allSettled(names.map((name) => client().acquire(name, { ttlMs: ttl })));
    for (const outcome of outcomes) if (outcome.status === "fulfilled") held.push(outcome.value);
    const count = outcomes.filter(({ status }) => status === "fulfilled").length;
    emit("held", id, { count, failed: names.length - count });
  },
  drop_all: async ({ id }) => {
    const outcomes = await Promise.allSettled(held.map((lock) => lock.release()));
    held = [];
    emit("ok", id, { count: outcomes.filter(({ status }) => status === "fulfilled").length });
  },
  churn: async ({ id, count }) => {
    for (let i = 0; i < count; i++) {
      const one = new fencepost.Client();
      await one.using(`churn/${i}`, () => undefined);
      if (i % 2 === 0) await one.close();
    }
    emit("ok", id);
  },
  once: async ({ id, name, at_least: atLeastMs }) => {
    await client().using(name, { atLeastMs }, () => undefined);
    emit("ok", id);
  },
  bench: async ({ id, locks, ms, bare }) => {
    const address = process.env.FENCEPOST_ADDR?.split(",")[0];
    const stub = createClient(LockService, createGrpcTransport({ baseUrl: `http://${address}` }));
    const request = { namespace: process.env.FENCEPOST_NAMESPACE ?? "default", owner: "bench", requestId: "x" };
    const begin = performance.now();
    let pairs = 0;
    const worker = async (name: string) => {
      for (; performance.now() - begin < ms; pairs++) {
        if (!bare) await client().using(name, () => undefined);
        else
          await stub.release({
            leaseId: (await stub.acquire({ ...request, requestId: crypto.randomUUID(), name })).lease?.leaseId,
          });
      }
    };
    await Promise.all(Array.from({ length: locks }, (_, i) => worker(`bench/${i}`)));
    emit("bench", id, { pairs, ms: Math.round(performance.now() - begin) });
  },
  close: async ({ id }) => {
    await client().close();
    emit("closed", id);
  },
};

const can = ["block", "once", "final_tls", "token_rotation", "early_loss", "due_renewals", "no_proxy"];
emit("hello", undefined, { language: "typescript", can, boom: ["throw", "sync_throw"] });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line) as Command;
  if (command.op === "exit") break;
  const handler = handlers[command.op];
  if (!handler) emit("unsupported", command.id);
  else
    void Promise.resolve(handler(command)).catch((error) =>
      emit("failed", command.id, { kind: "other", message: String(error) }),
    );
}
process.stdin.destroy();
await sleep(0);
