import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ClientClosed, type LeaseLost, LockHeld, Unavailable } from "fencepost-client";
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
    assert.match(log.join("\n"), /did not answer in time/);
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

  it("all goes over one connection, and many waits do not delay renewals and releases", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const client = connect(proxy.address);
    const held = await client.acquire("streams", { ttlMs: 5_000 });
    const waits = Array.from({ length: 1_200 }, () =>
      client.using("streams", { waitMs: 60_000, mode: "shared" }, () => undefined),
    );
    const all = Promise.all(waits);
    all.catch(() => undefined);
    await until(async () => (await client.get("streams")).waiterCount >= 700, 20_000);
    assert.equal(proxy.opened, 1);
    await held.release();
    await all;
  });
});

describe("a long wait", () => {
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
  it("is given up when a probe has no answer, and its waits go on at the next address", async () => {
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

describe("close", () => {
  it("ends within 5 s while no server answers, and a release afterwards ends too", async () => {
    const server = await serve();
    const proxy = await TcpProxy.to(server.address);
    const client = connect(proxy.address);
    const lock = await client.acquire("closed", { ttlMs: 60_000 });
    const waiting = assert.rejects(client.acquire("closed", { waitMs: 60_000 }), ClientClosed);
    await until(async () => (await client.get("closed")).waiterCount === 1);
    proxy.silence();
    proxy.isDeaf = true;
    const begin = performance.now();
    await client.close();
    assert.ok(performance.now() - begin < 8_000, "too late"); // Of 5 s, on a busy machine.
    await waiting;
    await assert.rejects(lock.release(), Unavailable);
  });
});
