import assert from "node:assert/strict";
import os from "node:os";
import { describe, it, mock } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Lease } from "../dist/cjs/lease.js";
import { Lock, Locks } from "../dist/cjs/lock.js";
import { now } from "../dist/cjs/time.js";

describe("the clock", () => {
  const lease = (ttlS: bigint) => {
    const none = { namespace: "", owner: "", guarantee: 1, holds: 1 };
    const duration = { seconds: ttlS, nanos: 0 };
    const grant = { leaseId: "id", name: "n", fencingToken: 1n, ttl: duration, ...none };
    return new Lease(grant as never, now(), true, { info: () => undefined, warn: () => undefined }, () => undefined);
  };

  it("ends a lease a thousandth early, because two clocks may differ, and tells the loss earlier still", () => {
    for (const [seconds, margin, earlier] of [
      [1n, 5, 50],
      [100n, 100, 250],
    ] as const) {
      const before = now();
      const { end, tellAt } = lease(seconds);
      assert.ok(Math.abs(end - before - Number(seconds) * 1_000 + margin) < 5);
      assert.ok(Math.abs(end - tellAt - earlier) < 0.01);
    }
  });

  it("is read after a blocked event loop, before any timer has run", async () => {
    const short = lease(1n);
    const end = performance.now() + 1_050;
    while (performance.now() < end);
    assert.equal(short.loss, undefined);
    assert.equal(short.lossNow()?.loss, "unrenewed");
  });

  it("is read by the signals too", async () => {
    const make = (): Lock => Reflect.construct(Lock, [{ session: {} }, lease(1n)]);
    const [lock, locks]: [Lock, Locks] = [make(), Reflect.construct(Locks, [{}, [make()]])];
    assert.equal(lock.signal.aborted || locks.signal.aborted, false);
    const end = performance.now() + 1_050;
    while (performance.now() < end);
    assert.equal(lock.signal.reason?.loss, "unrenewed");
    assert.equal(locks.signal.reason?.loss, "unrenewed");
  });

  it("does not take a late confirmation back into the lease", async () => {
    const short = lease(1n);
    const end = performance.now() + 1_050;
    while (performance.now() < end);
    short.renewed(now(), 60_000);
    assert.equal(short.loss?.loss, "unrenewed");
  });

  it("runs on while the machine is suspended, so that a lease that ended meanwhile is lost", {
    skip: process.platform !== "linux",
  }, async () => {
    const long = lease(3_600n);
    assert.equal(long.lossNow(), undefined);
    const { uptime } = os;
    // After a suspend, the time since boot is ahead of the time for which Node has run.
    const mocked = mock.method(os, "uptime", () => uptime() + 3_601);
    await sleep(20);
    assert.equal(long.lossNow()?.loss, "unrenewed");
    mocked.mock.restore();
    const begin = now();
    await sleep(20);
    assert.ok(now() > begin && now() < begin + 1_000, "it went back");
  });
});
