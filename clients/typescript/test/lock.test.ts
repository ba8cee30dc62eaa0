import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import * as fencepost from "fencepost-client";
import { type Client, LeaseLost, type Lock } from "fencepost-client";
import type { TestServer } from "fencepost-client/testing";
import { aborted, command, connect, serve, until } from "./support.js";

let server: TestServer;
let client: Client;
let names = 0;
const unused = () => `lock/${names++}`;
const holders = async (name: string) => (await client.get(name)).holderCount;

before(async () => {
  server = await serve();
  client = connect(server.address);
});

describe("a block", { concurrency: true }, () => {
  it("returns what its work returns, and releases", async () => {
    const name = unused();
    const token = await client.using(name, async (lock) => {
      assert.equal(await holders(name), 1);
      assert.equal(lock.isHeld, true);
      return lock.check();
    });
    assert.ok(Number.isSafeInteger(token) && token > 0);
    assert.equal(await holders(name), 0);
  });

  it("releases when its work rejects or throws synchronously", async () => {
    const works = [
      async () => {
        throw new RangeError("mine");
      },
      () => {
        throw new RangeError("mine");
      },
    ];
    for (const work of works) {
      const name = unused();
      await assert.rejects(client.using(name, work), RangeError);
      assert.equal(await holders(name), 0);
    }
  });

  it("hands the caller's abort to its work, and the reason back unchanged", async () => {
    const name = unused();
    const cancel = new AbortController();
    const reason = { mine: true };
    const block = client.using(name, { signal: cancel.signal }, async ({ signal }) => {
      cancel.abort(reason);
      signal.throwIfAborted();
    });
    await assert.rejects(block, (error) => error === reason);
    assert.equal(await holders(name), 0);
  });

  it("ends with the loss when an operator forces the lock, also for work that only knows AbortErrors", async () => {
    const name = unused();
    const listened: LeaseLost[] = [];
    const block = client.using(name, async (lock) => {
      lock.onLost((loss) => listened.push(loss));
      await command(server.address, "force-release", `default/${name}`, String(lock.token));
      await sleep(10_000, undefined, { signal: lock.signal });
    });
    await assert.rejects(block, (error) => error instanceof LeaseLost && error.loss === "forced");
    assert.deepEqual(
      listened.map(({ loss }) => loss),
      ["forced"],
    );
  });

  it("takes part in the lease of the block around it if both are reentrant, and other tasks wait", async () => {
    const name = unused();
    const reentrant = { reentrant: true };
    await client.using(name, reentrant, async (outer) => {
      await client.using(name, reentrant, async (inner) => assert.equal(inner.check(), outer.check()));
      assert.equal(outer.isHeld, true);
      assert.equal((await client.get(name)).holders[0]?.holds, 1);
    });
    const first = client.using(name, reentrant, () => sleep(200));
    await assert.rejects(
      client.using(name, reentrant, () => undefined),
      fencepost.LockHeld,
    );
    await first;
    await assert.rejects(client.acquire(name, reentrant), fencepost.InvalidArgument);
    const task = { reentrant: true, owner: "task-1" };
    await using one = await client.acquire(name, task);
    await using two = await client.acquire(name, task);
    assert.equal(one.check(), two.check());
  });

  it("is refused for what returns a generator, which would run without the lock", async () => {
    const name = unused();
    let ran = false;
    async function* job() {
      ran = true;
      yield 1;
    }
    for (const work of [job, async () => job(), () => (function* () {})()]) {
      await assert.rejects(client.using(name, work as () => unknown), fencepost.InvalidArgument);
    }
    assert.equal(ran, false);
    assert.equal(await holders(name), 0);
  });

  it("keeps its lock taken for its at-least, which fails before the work if it is too long", async () => {
    const name = unused();
    const begin = performance.now();
    await client.using(name, { atLeastMs: 1_500 }, () => undefined);
    assert.equal(await holders(name), 1);
    await client.using(name, { waitMs: 20_000 }, () => undefined);
    assert.ok(performance.now() - begin >= 1_499);
    let ran = false;
    const tooLong = client.using(unused(), { atLeastMs: 86_400_000_000 }, () => {
      ran = true;
    });
    await assert.rejects(tooLong, fencepost.InvalidArgument);
    assert.equal(ran, false);
  });
});

describe("a callback", { concurrency: true }, () => {
  it("that fails ends nothing: a listener, a logger, onDeposed", async () => {
    const fail = () => {
      throw new RangeError("mine");
    };
    const other = connect(server.address, { logger: { info: fail, warn: fail } });
    for (const listener of [fail, async () => fail()]) {
      const lock = await other.acquire(unused());
      lock.onLost(listener);
      await client.forceRelease(lock.name, lock.token);
      await aborted(lock.signal);
    }
    const name = unused();
    let led = 0;
    await other.election(name).lead({
      onDeposed: fail,
      onElected: async ({ token, signal }) => {
        if (led++ > 0) return;
        await client.forceRelease(name, token);
        await aborted(signal);
        signal.throwIfAborted();
      },
    });
    assert.equal(led, 2);
    await sleep(50);
  });
});

describe("a lock that nobody refers to", { concurrency: true }, () => {
  it("is not renewed any more, and the log says so; one of a block is", async () => {
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc") as () => void;
    const log: string[] = [];
    const other = connect(server.address, { logger: { info: () => undefined, warn: (line) => log.push(line) } });
    const name = unused();
    await other.acquire(name, { ttlMs: 2_000 });
    // Nothing refers to this promise, and so not to its lock.
    void other.using(`${name}/block`, { ttlMs: 3_000 }, () => new Promise(() => undefined)).catch(() => undefined);
    await until(async () => {
      collect();
      return (await holders(name)) === 0;
    });
    assert.match(log.join("\n"), /dropped without a release/);
    collect();
    await sleep(3_000);
    assert.equal(await holders(`${name}/block`), 1);
    assert.equal(log.filter((line) => /dropped/.test(line)).length, 1);
  });
});

describe("an operator", { concurrency: true }, () => {
  it("lists locks, checks tokens and takes locks away", async () => {
    const name = `operator/${unused()}`;
    const lock = await client.acquire(name);
    const listed: string[] = [];
    for await (const { name } of client.list("operator/")) listed.push(name);
    assert.deepEqual(listed, [name]);
    assert.equal(await client.checkToken(name, lock.token), true);
    await client.forceRelease(name, lock.token);
    await aborted(lock.signal);
    assert.equal(await client.checkToken(name, lock.token), false);
    await assert.rejects(client.forceRelease(name, lock.token), LeaseLost);
  });
});

describe("two holds of one claim", () => {
  it("are kept until the second is released", async () => {
    const name = unused();
    const task = { reentrant: true, owner: "task-2", ttlMs: 4_000 };
    const one = await client.acquire(name, task);
    const two = await client.acquire(name, task);
    await one.release();
    await sleep(5_000);
    assert.ok(two.check() > 0);
    await two.release();
    assert.equal(await holders(name), 0);
  });
});

describe("a lock", { concurrency: true }, () => {
  it("is refused with its holder, and after the wait", async () => {
    const name = unused();
    await using lock = await client.acquire(name, { owner: "anna", ttlMs: 5_000 });
    await assert.rejects(client.acquire(name), (error) => {
      assert.ok(error instanceof fencepost.LockHeld);
      assert.equal(error.reason, "LOCK_HELD");
      assert.equal(error.owner, "anna");
      return Number(error.remainingMs) > 1_000;
    });
    const begin = performance.now();
    await assert.rejects(client.acquire(name, { waitMs: 300 }), fencepost.WaitTimeout);
    assert.ok(performance.now() - begin >= 299);
    assert.ok(lock.isHeld);
  });

  it("is not held after the release, which can be repeated and does not abort the signal", async () => {
    const lock = await client.acquire(unused());
    await Promise.all([lock.release(), lock.release()]);
    await lock[Symbol.asyncDispose]();
    assert.equal(lock.signal.aborted, false);
    assert.equal(lock.isHeld, false);
    assert.equal(lock.remainingMs, 0);
    assert.throws(() => lock.check(), LeaseLost);
  });

  it("is shared by readers, and by the holders of permits", async () => {
    const name = unused();
    await using _one = await client.acquire(name, { mode: "shared" });
    await using _two = await client.acquire(name, { mode: "shared" });
    await assert.rejects(client.acquire(name), fencepost.LockHeld);
    const pool = unused();
    const taken = await Promise.allSettled(Array.from({ length: 7 }, () => client.acquire(pool, { mode: { limit: 5 } })));
    assert.equal(taken.filter(({ status }) => status === "fulfilled").length, 5);
  });

  it("shows its metadata, and what replaces them", async () => {
    const name = unused();
    await using lock = await client.acquire(name, { metadata: { job: "1" } });
    await lock.updateMetadata({ job: "2" });
    assert.deepEqual((await client.get(name)).holders[0]?.metadata, { job: "2" });
  });

  it("is extended, and ends if it is not renewed", async () => {
    const name = unused();
    const lock = await client.acquire(name, { ttlMs: 1_000, renew: false });
    await lock.extend(2_000);
    await sleep(1_300);
    assert.ok(lock.check());
    await aborted(lock.signal);
    assert.equal((lock.signal.reason as LeaseLost).loss, "unrenewed");
    await assert.rejects(lock.release(), LeaseLost);
  });

  it("is watched: the state, then each change", async () => {
    const name = unused();
    const seen: string[] = [];
    for await (const { event } of client.watch(name)) {
      if (event.case === "state") void client.using(name, () => undefined);
      else seen.push(String(fencepost.ChangeKind[event.value?.kind ?? 0]));
      if (seen.length === 2) break;
    }
    assert.deepEqual(seen, ["GRANTED", "RELEASED"]);
  });

  it("names the argument and the bound if it cannot be asked for so", async () => {
    await assert.rejects(client.acquire(""), (error) => error instanceof fencepost.InvalidArgument && /name/.test(error.message));
    for (const options of [{ waitMs: -1 }, { ttlMs: Number.NaN }, { ttlMs: 0 }]) {
      await assert.rejects(client.acquire(unused(), options), fencepost.InvalidArgument);
    }
    for (const address of ["host", "https://host", "ftp://a:1", "a:99999", ""]) {
      assert.throws(() => new fencepost.Client([address]), fencepost.InvalidArgument, address);
    }
  });
});

describe("many", () => {
  it("120 names of 512 bytes are kept beyond their TTL", async () => {
    const locks = await Promise.all(
      Array.from({ length: 120 }, (_, i) => client.acquire(`${i}/`.padEnd(512, "x"), { ttlMs: 3_000 })),
    );
    await sleep(4_500);
    for (const lock of locks) lock.check();
    await Promise.all(locks.map((lock) => lock.release()));
  });

  it("1,100 leases at once are kept beyond their TTL", async () => {
    const locks = await Promise.all(Array.from({ length: 1_100 }, (_, i) => client.acquire(`many/${i}`, { ttlMs: 10_000 })));
    await sleep(11_000);
    for (const lock of locks) lock.check();
    await Promise.all(locks.map((lock) => lock.release()));
  });

  it("cancelled acquires leave no lease", async () => {
    const attempts = Array.from({ length: 200 }, async (_, i) => {
      const cancel = new AbortController();
      const attempt = client.acquire(`storm/${i}`, { waitMs: 5_000, ttlMs: 60_000, signal: cancel.signal });
      setTimeout(() => cancel.abort(), i % 20);
      await attempt.then((lock) => lock.release()).catch(() => undefined);
    });
    await Promise.all(attempts);
    await until(async () => !(await command(server.address, "list", "default")).includes("storm/"));
  });

  it("16 callers of several locks do not block each other", async () => {
    const pairs = [
      ["a", "b"],
      ["b", "c"],
      ["c", "a"],
    ];
    let inside = 0;
    await Promise.all(
      Array.from({ length: 16 }, (_, i) =>
        client.usingAll(pairs[i % 3] ?? [], { waitMs: 30_000 }, async (locks) => {
          assert.equal(locks.check().length, 2);
          inside++;
        }),
      ),
    );
    assert.equal(inside, 16);
    await using one = await client.acquireAll(["a"]);
    assert.equal(one.check().length, 1);
  });
});

describe("close", { concurrency: true }, () => {
  it("releases what is held, ends what waits, and can be repeated", async () => {
    const other = connect(server.address);
    const [name, waited] = [unused(), unused()];
    await using _held = await client.acquire(waited);
    const wait = assert.rejects(other.acquire(waited, { waitMs: Number.POSITIVE_INFINITY }), fencepost.ClientClosed);
    const leaders = other.election(unused()).observe();
    await leaders.next();
    const observe = assert.rejects(leaders.next(), fencepost.ClientClosed);
    let lost = 0;
    const block = other.using(name, async (lock) => {
      lock.onLost(() => lost++);
      await aborted(lock.signal);
      lock.signal.throwIfAborted();
    });
    const ended = assert.rejects(block, fencepost.ClientClosed);
    await until(async () => (await client.get(waited)).waiterCount === 1 && (await holders(name)) === 1);
    await Promise.all([other.close(), other.close()]);
    await Promise.all([wait, ended, observe]);
    assert.equal(await holders(name), 0);
    assert.equal((await client.get(waited)).waiterCount, 0);
    assert.equal(lost, 0);
    await assert.rejects(other.acquire(name), fencepost.ClientClosed);
    await assert.rejects(other.get(name), fencepost.ClientClosed);
  });

  it("is not needed for the end of a program that holds nothing", async () => {
    const text = `
      import { Client } from "fencepost-client";
      const client = new Client(${JSON.stringify(server.address)});
      for await (const lock of client.list()) lock;
      await client.using("exit", { ttlMs: 3000 }, () => new Promise((done) => setTimeout(done, 700)));
      console.log("done");`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", text], { cwd: process.cwd() });
    let output = "";
    child.stdout.on("data", (data) => (output += data));
    const doneAt = once(child.stdout, "data").then(() => performance.now());
    const [code] = await once(child, "exit");
    assert.equal(code, 0);
    assert.match(output, /done/);
    assert.ok(performance.now() - (await doneAt) < 1_500, "it stayed alive");
  });
});

describe("a lock that nobody awaits", () => {
  it("is held by the process that holds it", async () => {
    const lock: Lock = await client.acquire(unused(), { ttlMs: 4_000 });
    await sleep(5_000);
    assert.ok(lock.check() > 0);
    await lock.release();
  });
});
