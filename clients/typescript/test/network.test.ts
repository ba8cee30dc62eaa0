import assert from "node:assert/strict";
import { once } from "node:events";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { type LeaseLost, LockHeld, Unavailable } from "fencepost-client";
import { Acquisition, Gate } from "../dist/esm/acquire.js";
import { Connections } from "../dist/esm/connections.js";
import { settings } from "../dist/esm/options.js";
import type { duration } from "../dist/esm/time.js";
import { aborted, connect, serve, TcpProxy, until } from "./support.js";

const quiet = { info: () => undefined, warn: () => undefined };

describe("a network that fails", { concurrency: true }, () => {
  it("a connection that goes silent loses no lease, and the next calls use another one", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const log: string[] = [];
    const client = connect(proxy.address, { logger: { ...quiet, info: (line) => log.push(line) } });
    const lock = await client.acquire("silent", { ttlMs: 4_000 });
    await sleep(1_500);
    proxy.silence();
    await sleep(5_500);
    assert.ok(lock.check() > 0);
    assert.match(log.join("\n"), /renewed again/);
    await lock.release();
    assert.equal((await client.get("silent")).holderCount, 0);
  });

  it("a release over a connection that is silent is confirmed over another one", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const client = connect(proxy.address);
    const lock = await client.acquire("release", { ttlMs: 30_000 });
    proxy.silence();
    await lock.release();
    assert.equal((await client.get("release")).holderCount, 0);
  });

  it("connections that are reset again and again lose no lease and no place in the queue", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const client = connect(proxy.address);
    const lock = await client.acquire("resets", { ttlMs: 3_000 });
    const waiting = client.acquire("resets", { waitMs: 20_000, ttlMs: 3_000 });
    for (let i = 0; i < 8; i++) {
      await sleep(500);
      proxy.cut();
    }
    assert.ok(lock.check() > 0);
    await lock.release();
    const next = await waiting;
    assert.ok(next.token > lock.token);
    await next.release();
  });

  it("a server that is gone loses the lease in time, and the release says that it was not confirmed", async () => {
    const server = await serve();
    const client = connect(server.address);
    const short = await client.acquire("short", { ttlMs: 1_500 });
    const long = await client.acquire("long", { ttlMs: 60_000 });
    const begin = performance.now();
    await server.stop();
    await aborted(short.signal);
    assert.ok(performance.now() - begin < 3_000, "too late");
    assert.equal((short.signal.reason as LeaseLost).loss, "unrenewed");
    const released = performance.now();
    await assert.rejects(long.release(), (error) => error instanceof Unavailable && /not confirmed/.test(error.message));
    assert.ok(performance.now() - released < 5_500);
    await client.close();
  });

  it("calls, waits and leases go on at the next address", async () => {
    const server = await serve();
    const first = await TcpProxy.to(server.address);
    const second = await TcpProxy.to(server.address);
    const client = connect([first.address, second.address]);
    const lock = await client.acquire("failover", { ttlMs: 3_000 });
    const waiting = client.acquire("failover", { waitMs: 20_000 });
    await until(async () => (await client.get("failover")).waiterCount === 1);
    first.close();
    await sleep(3_500);
    assert.ok(lock.check() > 0);
    await lock.release();
    await (await waiting).release();
    assert.ok(second.opened > 0);
  });

  it("a dead first address costs no error", async () => {
    const server = await serve();
    const client = connect(["127.0.0.1:1", server.address]);
    await client.using("dead", () => undefined);
    const none = connect("127.0.0.1:1");
    await assert.rejects(none.acquire("dead"), Unavailable);
  });

  it("waits use connections of their own, so that a proxy's limit of streams does not delay renewals and releases", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const client = connect(proxy.address);
    const held = await client.acquire("streams", { ttlMs: 5_000 });
    const waits = Array.from({ length: 120 }, () => client.using("streams", { waitMs: 60_000, mode: "shared" }, () => undefined));
    const all = Promise.all(waits);
    all.catch(() => undefined);
    await until(async () => (await client.get("streams")).waiterCount === 120, 20_000);
    // One for calls, and two for 120 waits.
    assert.equal(proxy.opened, 3);
    await held.release();
    await all;
  });
});

describe("a call", () => {
  it("has a deadline that is a whole number", async () => {
    const timeouts: unknown[] = [];
    const server = http2.createServer((request, response) => {
      timeouts.push(request.headers["grpc-timeout"]);
      response.writeHead(200, { "content-type": "application/grpc+proto", "grpc-status": "12" }).end();
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const client = connect(`127.0.0.1:${(server.address() as AddressInfo).port}`);
    await assert.rejects(client.get("name"), { reason: "Unimplemented" });
    await assert.rejects(client.acquire("name", { waitMs: 1_234.5 }), { reason: "Unimplemented" });
    await client.close();
    server.close();
    assert.equal(timeouts.length, 2);
    for (const timeout of timeouts) assert.match(String(timeout), /^\d{1,8}m$/);
  });
});

describe("a long wait", () => {
  it("is handed over to calls with the same request_id, and keeps its place", async () => {
    const server = await serve();
    const all = settings(server.address, { logger: quiet });
    const connections = new Connections(all);
    const client = connect(server.address);
    const held = await client.acquire("long", { ttlMs: 30_000 });
    let sent = 0;
    const send =
      (wait: ReturnType<typeof duration> | undefined) => async (to: ReturnType<Connections["current"]>, options: object) => {
        sent++;
        const request = { namespace: "default", name: "long", owner: "first", requestId: "one", wait };
        const { lease } = await to.locks.acquire(request, options);
        return lease ? [lease] : [];
      };
    const release = async () => assert.fail("nothing is to be released");
    const attempt = new Acquisition(connections, { count: 1, send, release }, () => undefined, new Gate(), 400);
    const first = attempt.run(30_000, new AbortController().signal);
    await until(async () => (await client.get("long")).waiterCount === 1);
    const second = client.acquire("long", { waitMs: 30_000, owner: "second" });
    await until(async () => (await client.get("long")).waiterCount === 2);
    await sleep(1_500);
    const { waiters } = await client.get("long");
    assert.deepEqual(
      waiters.map(({ owner }) => owner),
      ["first", "second"],
    );
    assert.ok(sent >= 4, `${sent} calls`);
    await held.release();
    const { grants } = await first;
    await connections.call(({ locks }, options) => locks.release({ leaseId: grants[0]?.leaseId }, options));
    await (await second).release();
    connections.close();
  });

  it("that is cancelled while the grant is under way gives it back", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const client = connect(proxy.address);
    const direct = connect(server.address);
    await client.using("warm", { waitMs: 1_000 }, () => undefined);
    proxy.delayMs = 300;
    const cancel = new AbortController();
    const attempt = client.acquire("late", { waitMs: 10_000, ttlMs: 60_000, signal: cancel.signal });
    attempt.catch(() => undefined);
    await until(async () => (await direct.get("late")).holderCount === 1);
    cancel.abort();
    await assert.rejects(attempt, { name: "AbortError" });
    await until(async () => (await direct.get("late")).holderCount === 0);
  });

  it("that ends leaves the queue, and a try behind it is told", async () => {
    const server = await serve();
    const client = connect(server.address);
    await using _held = await client.acquire("end");
    const cancel = new AbortController();
    const waiting = client.acquire("end", { waitMs: Number.POSITIVE_INFINITY, signal: cancel.signal });
    await until(async () => (await client.get("end")).waiterCount === 1);
    const reason = new Error("mine");
    cancel.abort(reason);
    await assert.rejects(waiting, (error) => error === reason);
    await until(async () => (await client.get("end")).waiterCount === 0);
    await assert.rejects(client.acquire("end"), LockHeld);
  });
});

describe("a silent connection", { concurrency: true }, () => {
  it("is given up by a ping, and its waits go on at the next address", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const client = connect([proxy.address, server.address]);
    const holder = connect(server.address);
    const held = await holder.acquire("silent-wait", { ttlMs: 60_000 });
    const waits = [1, 2, 3].map(() => client.using("silent-wait", { waitMs: 40_000, mode: "shared" }, () => undefined));
    const all = Promise.all(waits);
    all.catch(() => undefined);
    await until(async () => (await holder.get("silent-wait")).waiterCount === 3);
    proxy.silence();
    await sleep(11_000);
    await held.release();
    await all;
  });

  it("that is silent from its start is given up sooner", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    proxy.isDeaf = true;
    const client = connect([proxy.address, server.address]);
    const begin = performance.now();
    await client.using("deaf", { waitMs: 30_000 }, () => undefined);
    assert.ok(performance.now() - begin < 8_000);
    await client.close();
  });
});
