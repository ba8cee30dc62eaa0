/**
 * A lock of Fencepost that is kept while a function runs. Copy this file.
 *
 *     await new Locks("127.0.0.1:50051", "me").hold({ name: "reports" }, async (lock) => {
 *       lock.check(); // throws LeaseLost; lock.signal is an AbortSignal
 *       await save(report, lock.token);
 *     }, 30_000);
 *
 * A lease counts from before its request was sent, so that its loss is reported before another client can hold the lock.
 * A process can be paused between a check and a write: the resource must compare the tokens.
 */
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import protobuf from "protobufjs";
import type { AcquireRequest } from "./gen/fencepost/v1/AcquireRequest.js";
import type { KeepAliveRequest } from "./gen/fencepost/v1/KeepAliveRequest.js";
import type { KeepAliveResponse__Output } from "./gen/fencepost/v1/KeepAliveResponse.js";
import type { Lease__Output } from "./gen/fencepost/v1/Lease.js";
import type { LockServiceClient } from "./gen/fencepost/v1/LockService.js";
import type { Duration__Output } from "./gen/google/protobuf/Duration.js";
import type { ProtoGrpcType } from "./gen/lock.js";

const PROTO = new URL("../../../proto", import.meta.url).pathname;
const RETRY_MS = 200;
const OPTIONS = { "grpc.keepalive_time_ms": 5000, "grpc.keepalive_timeout_ms": 5000, "grpc.max_reconnect_backoff_ms": 1000 };
const { UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, UNKNOWN, CANCELLED } = grpc.status;
const RETRYABLE = [UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, UNKNOWN, CANCELLED];
const rpc = protobuf.parse(`syntax = "proto3"; message Any { string type_url = 1; bytes value = 2; }
  message Status { repeated Any details = 3; } message ErrorInfo { string reason = 1; string domain = 2; }`).root;
const loaded = loadSync("fencepost/v1/lock.proto", { longs: Number, enums: String, defaults: true, oneofs: true, includeDirs: [PROTO] });
const { LockService } = (grpc.loadPackageDefinition(loaded) as unknown as ProtoGrpcType).fencepost.v1;

const milliseconds = (time: Duration__Output | null) => (time ? time.seconds * 1e3 + time.nanos / 1e6 : 0);
export const seconds = (count: number) => ({ seconds: Math.floor(count), nanos: Math.floor((count % 1) * 1e9) });

/** A failed call. The reason is that of the server's ErrorInfo, or the gRPC status if there is none. */
export class FencepostError extends Error {
  constructor(readonly reason: string, text: string, readonly retryable = false) { super(`${reason}: ${text}`); }
}
export class LockHeld extends FencepostError {}
export class WaitTimeout extends FencepostError {}
export class LeaseLost extends FencepostError {}
const KINDS = { LOCK_HELD: LockHeld, WAIT_TIMEOUT: WaitTimeout, LEASE_LOST: LeaseLost } as Record<string, typeof FencepostError>;

function typed(error: grpc.ServiceError): FencepostError {
  const [details] = error.metadata.get("grpc-status-details-bin");
  const status = rpc.lookupType("Status").decode((details as Buffer | undefined) ?? Buffer.of()).toJSON();
  const infos = (status.details ?? []).map((any: { value: string }) =>
    rpc.lookupType("ErrorInfo").decode(Buffer.from(any.value, "base64")).toJSON());
  const reason = infos.find((info: { domain?: string }) => info.domain === "fencepost")?.reason ?? grpc.status[error.code];
  return new (KINDS[reason] ?? FencepostError)(reason, error.details, RETRYABLE.includes(error.code));
}
/** A held lock. Its signal aborts when the lease is or may be lost. */
export class Lock {
  #ended = new AbortController();
  #timer?: NodeJS.Timeout;
  readonly signal = this.#ended.signal;
  constructor(readonly id: string, readonly token: number, private until = 0) {}
  /** Throws LeaseLost if the lease is or may be lost. It reads the clock, so it is right after a pause too. */
  check() {
    if (performance.now() >= this.until) this.end("no renewal was confirmed in time");
    this.signal.throwIfAborted();
  }
  extend(until: number) {
    this.until = Math.max(this.until, until);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.end("no renewal was confirmed in time"), this.until - performance.now());
  }
  end(cause: string) {
    clearTimeout(this.#timer);
    this.#ended.abort(new LeaseLost("LEASE_LOST", cause));
  }
}
/** The locks of a process: one channel, and on it one KeepAlive stream for up to 1000 leases. */
export class Locks {
  readonly stub: LockServiceClient;
  #held = new Map<string, Lock>();
  #beats: { sent: number; locks: Lock[] }[] = []; // Those without an answer; the server answers them in their order.
  #stream?: grpc.ClientDuplexStream<KeepAliveRequest, KeepAliveResponse__Output>;
  #closed = false;

  constructor(address: string, readonly owner: string, readonly namespace = "default") {
    this.stub = new LockService(address, grpc.credentials.createInsecure(), OPTIONS);
    this.#open();
  }

  close() {
    this.#closed = true;
    this.#stream?.cancel();
    this.stub.close();
  }

  /** Holds a lock while `work` runs. Rejects with LockHeld, WaitTimeout, or LeaseLost if the lease was lost meanwhile. */
  async hold<T>(request: AcquireRequest, work: (lock: Lock) => Promise<T>, waitMs = 0): Promise<T> {
    const lock = await this.#acquire(request, performance.now() + waitMs);
    this.#held.set(lock.id, lock);
    this.#beat();
    const [outcome] = await Promise.allSettled([work(lock)]);
    this.#held.delete(lock.id);
    const failed = lock.signal.aborted ? lock.signal.reason : await this.#release(lock.id);
    lock.end("released");
    if (outcome.status === "rejected") throw outcome.reason;
    if (failed instanceof LeaseLost) throw failed;
    return outcome.value;
  }

  #release(leaseId: string): Promise<FencepostError | null> {
    const metadata = new grpc.Metadata({ waitForReady: true }); // Without an answer, the lease ends with its TTL.
    return new Promise((done) => this.stub.release({ leaseId }, metadata, { deadline: Date.now() + 5000 }, (error) => done(error && typed(error))));
  }

  async #acquire(request: AcquireRequest, end: number): Promise<Lock> {
    const requestId = randomUUID(); // By it, a repeated call finds the claim of the call before.
    for (;;) {
      const sent = performance.now();
      const wait = Math.max(end - sent, 0);
      const fields = { namespace: this.namespace, owner: this.owner, requestId, ...request, wait: seconds(wait / 1e3) };
      const answer = await new Promise<Lease__Output | FencepostError>((done) =>
        this.stub.acquire(fields, { deadline: Date.now() + wait + 5000 }, (error, answer) => done(error ? typed(error) : answer!.lease!)));
      if (!(answer instanceof FencepostError)) {
        const lock = new Lock(answer.leaseId, answer.fencingToken);
        lock.extend(sent + milliseconds(answer.waited) + milliseconds(answer.ttl));
        return lock;
      }
      if (!answer.retryable || performance.now() + RETRY_MS >= end) throw answer;
      await sleep(RETRY_MS);
    }
  }

  #beat() {
    const locks = [...this.#held.values()].filter((lock) => !lock.signal.aborted);
    this.#beats.push({ sent: performance.now(), locks });
    this.#stream?.write({ leaseIds: locks.map((lock) => lock.id) });
  }
  #open() {
    this.#beats = [];
    this.#stream = this.stub.keepAlive(); // It begins with an ask, whose answer names all leases again.
    this.#stream.on("error", () => {}).on("status", () => this.#closed || setTimeout(() => this.#open(), RETRY_MS));
    this.#stream.on("data", ({ ask, kept, lost }: KeepAliveResponse__Output) => {
      if (ask) this.#beat();
      if (kept) {
        const beat = this.#beats.shift()!;
        beat.locks.forEach((lock, i) => lock.signal.aborted || lock.extend(beat.sent + milliseconds(kept.ttls[i])));
      }
      if (lost?.reason === "LEASE_LOST") this.#held.get(lost.leaseId)?.end(lost.cause);
    });
  }
}
