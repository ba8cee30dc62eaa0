// What needs no server of Fencepost.
import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { Client, type ClientOptions, FencepostError, InvalidArgument, LeaseLost, Unavailable } from "fencepost-client";
import Redlock, { ExecutionError } from "fencepost-client/redlock";
import { Command } from "../dist/cjs/command.js";
import { Core } from "../dist/cjs/core.js";
import { LeaseSchema } from "../dist/cjs/gen/fencepost/v1/lock_pb.js";
import { Lock } from "../dist/cjs/lock.js";
import { settings } from "../dist/cjs/options.js";
import { now } from "../dist/cjs/time.js";
import { type Event, fake, type Handlers, type Outcome } from "./fake.js";
import { until } from "./support.js";

const quiet = { info: () => undefined, warn: () => undefined };

describe("credentials", () => {
  const file = join(mkdtempSync(join(tmpdir(), "fencepost-")), "file");
  writeFileSync(file, "secret");

  for (const [field, options] of Object.entries({
    bearerFile: { bearerFile: file },
    caFile: { caFile: file },
    certFile: { certFile: file, keyFile: file },
  })) {
    it(`${field}: only loopback and Unix sockets may go without encryption`, () => {
      const remote = ["example.org:1", "127.evil.example:1", "127.0.0.1.nip.io:1", "10.0.0.1:1", "[2001:db8::1]:1"];
      for (const address of remote) {
        const make = () => settings(["https://a:1", address], { ...options, logger: quiet });
        assert.throws(make, { name: "InvalidArgument", message: new RegExp(`^${field}: .*https`) }, address);
      }
      for (const address of ["https://a:1", "localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "unix:/s"]) {
        settings(address, { ...options, logger: quiet });
      }
    });
  }
});

const grant = create(LeaseSchema, { leaseId: "secret-id", name: "a", fencingToken: 7n, ttl: { seconds: 60n } });
const refuse = (code: Code, reason: string) => ({ case: "error", value: { code, message: "away", reason } }) as const;
const take = (core: Core, options = {}) =>
  core.take(["a"], options, (fields, keep) => ({ case: "acquire", value: { request: { ...fields, name: "a" }, keep } }));
const coreOf = (address: string, options: ClientOptions = {}) => new Core(settings(address, { logger: quiet, ...options }));

describe("a held lock", () => {
  it("does not show the id of its lease, with which anybody can release it", async () => {
    const { address } = await fake({ acquire: () => ({ case: "acquire", value: { lease: grant } }) });
    const core = coreOf(address);
    const [lease] = await take(core);
    assert.ok(lease);
    const lock: Lock = Reflect.construct(Lock, [core, lease]);
    const shown = inspect(lock, { depth: 20, showHidden: true });
    assert.match(shown, /token: 7/);
    assert.doesNotMatch(shown, /secret-id/);
    assert.doesNotMatch(JSON.stringify({ ...lease, attachedBy: 0 }), /secret-id/);
    await core.close();
  });
});

describe("an acquire that ended", () => {
  /** What was released after these answers. */
  const undone = async (answers: Outcome[]) => {
    const released: string[] = [];
    const { address } = await fake({
      acquire: () => answers.shift() ?? { case: "acquire", value: { lease: grant } },
      release: ({ value }) => {
        released.push((value as { leaseId: string }).leaseId);
        return { case: "release", value: {} };
      },
    });
    const core = coreOf(address);
    await assert.rejects(take(core), { name: "Unavailable" });
    await core.close();
    return released;
  };

  for (const reason of ["BACKEND_UNAVAILABLE", "NO_QUORUM"]) {
    it(`with ${reason} is undone, when the store is back, because it may have been granted`, async () => {
      const away = refuse(Code.Unavailable, reason);
      assert.deepEqual(await undone([away, away]), ["secret-id"]);
    });
  }

  it("with BACKEND_QUARANTINED is not repeated", async () => {
    assert.deepEqual(await undone([refuse(Code.Unavailable, "BACKEND_QUARANTINED")]), []);
  });

  it("that was superseded by its own command of an earlier stream is sent once more", async () => {
    const answers = [refuse(Code.Aborted, "SUPERSEDED")];
    const { address } = await fake({ acquire: () => answers.shift() ?? { case: "acquire", value: { lease: grant } } });
    const core = coreOf(address);
    assert.equal((await take(core, { waitMs: 5_000 })).length, 1);
    await core.close();
  });
});

describe("an answer that lacks a lease", () => {
  const released: string[] = [];
  const handlers: Handlers = {
    acquire: ({ value }) => ({ case: "acquire", value: value.request?.name === "whole" ? { lease: grant } : {} }),
    acquireAll: ({ value }) => ({
      case: "acquireAll",
      value: { leases: value.request?.locks.slice(1).map(({ name }) => ({ ...grant, leaseId: name })) ?? [] },
    }),
    campaign: () => ({ case: "acquire", value: {} }),
    renew: () => ({ case: "renew", value: {} }),
    getLock: () => ({ case: "getLock", value: {} }),
    release: ({ value }) => {
      released.push(value.leaseId);
      return { case: "release", value: {} };
    },
  };

  for (const [what, call, grants = []] of [
    ["one", (client) => client.acquire("a")],
    ["one that waits", (client) => client.acquire("a", { waitMs: 60_000 })],
    ["one of two", (client) => client.acquireAll(["a", "b"]), ["b"]],
    ["one of three", (client) => client.acquireAll(["a", "b", "c"], { waitMs: 60_000 }), ["b", "c"]],
    ["a leader", (client) => client.election("a").campaign()],
    ["an extension", async (client) => (await client.acquire("whole")).extend(90_000), ["secret-id"]],
    ["the queue", (client) => client.get("a")],
  ] satisfies [string, (client: Client) => Promise<unknown>, string[]?][]) {
    it(`is an error, and its grants are released: ${what}`, async () => {
      const { address } = await fake(handlers);
      const client = new Client(address, { logger: quiet });
      await assert.rejects(call(client), (error) => error instanceof FencepostError && error.reason === "INCOMPLETE");
      await client.close();
      assert.deepEqual(released.splice(0), grants);
    });
  }
});

describe("a lost lease", () => {
  it("is released in the background if it is unrenewed, because the server may still count on it", async () => {
    const released: string[] = [];
    const ids = ["a", "b", "c"];
    const { address } = await fake({
      acquire: () => ({ case: "acquire", value: { lease: { ...grant, leaseId: ids.shift() ?? "" } } }),
      release: ({ value }) => {
        released.push(value.leaseId);
        return value.leaseId === "c" ? refuse(Code.NotFound, "LEASE_LOST") : { case: "release", value: {} };
      },
    });
    const log: string[] = [];
    const core = coreOf(address, { logger: { ...quiet, warn: (line) => log.push(line) } });
    for (const cause of ["forced", "unrenewed", "unrenewed"] as const) (await take(core))[0]?.lose(cause);
    await core.close();
    assert.deepEqual(released, ["b", "c"]);
    assert.equal(log.length, 3, "one line for each loss");
  });
});

describe("a beat", () => {
  it("of a new stream counts for a lease only if it was sent after the stream had attached the lease", async () => {
    const answers: Outcome[] = [];
    const { address, sessions } = await fake({
      acquire: () => ({ case: "acquire", value: { lease: grant } }),
      attach: () => answers.shift(),
      keepAlive: ({ id }) => [{ case: "kept", value: { id } }],
    });
    const core = coreOf(address);
    const [lease] = await take(core);
    assert.ok(lease);
    const { end } = lease;
    sessions[0]?.end();
    await until(() => sessions.length === 2 && (sessions[1]?.seen.includes("keepAlive") ?? false));
    await sleep(100);
    assert.equal(lease.end, end, "the attach has no answer yet");
    answers.push({ case: "attach", value: {} });
    sessions[1]?.end();
    await until(() => lease.end > end);
    await core.close();
  });
});

describe("leases of a new stream", () => {
  it("are attached each alone if the server refuses one of them", async () => {
    const ids = ["a", "b"];
    const { address, sessions } = await fake({
      acquire: () => ({ case: "acquire", value: { lease: { ...grant, leaseId: ids.shift() ?? "" } } }),
      attach: ({ value }) =>
        value.leaseIds.includes("a") ? refuse(Code.PermissionDenied, "PERMISSION_DENIED") : { case: "attach", value: {} },
    });
    const core = coreOf(address);
    const [[denied], [allowed]] = [await take(core), await take(core)];
    assert.ok(denied && allowed);
    sessions[0]?.end();
    await until(() => allowed.attachedBy === undefined);
    await until(() => allowed.attachedBy !== undefined);
    assert.equal(denied.attachedBy, undefined);
    await core.close();
  });
});

describe("the limits of a server", () => {
  const get = (name: string, limitMs: number) =>
    new Command(() => ({ case: "getLock", value: { name } }), { end: now() + limitMs });
  const late = () =>
    fake(
      {
        getLock: ({ value }) => {
          const answer: Outcome = { case: "getLock", value: {} };
          return value.name === "slow" ? sleep(900).then(() => answer) : answer;
        },
      },
      5,
    );

  it("are free again when a command has a result that nobody waits for any more", async () => {
    const core = coreOf((await late()).address);
    await core.session.send(get("warm", 5_000)); // The limits are known.
    await assert.rejects(core.session.send(get("slow", 200)), Unavailable);
    await core.session.send(get("next", 5_000));
    await core.close();
  });

  it("hold up no command behind those that are over before they were sent", async () => {
    const core = coreOf((await late()).address);
    await core.session.send(get("warm", 5_000)); // The limits are known.
    const first = core.session.send(get("slow", 5_000));
    const over = Array.from({ length: 20 }, () => assert.rejects(core.session.send(get("over", 300)), Unavailable));
    const live = core.session.send(get("live", 5_000));
    await Promise.all([first, live, ...over]);
    await core.close();
  });

  it("are those of one request, and a request that is too large fails alone", async () => {
    const { address } = await fake({ getLock: () => ({ case: "getLock", value: {} }) });
    const core = coreOf(address);
    await assert.rejects(core.session.send(get("x".repeat(70_000), 5_000)), InvalidArgument);
    await core.session.send(get("x", 5_000));
    await core.close();
  });
});

describe("a watch", () => {
  it("that nobody reads begins anew, and tells the state before later changes", async () => {
    const message = (id: bigint, event: object) => ({ case: "watched", value: { id, message: { event } } }) as Event;
    let watches = 0;
    const change = (id: bigint) => message(id, { case: "change", value: { owner: `change ${watches}` } });
    let first = 0n;
    const { address, sessions } = await fake({
      watchLock: ({ id }) => {
        first ||= id;
        const state = message(id, { case: "state", value: { name: `state ${++watches}` } });
        return watches === 1 ? [state] : [state, change(id)];
      },
      getLock: () => ({ case: "getLock", value: { lock: {} } }),
    });
    const client = new Client(address, { logger: quiet });
    const seen: string[] = [];
    for await (const { event } of client.watch("a")) {
      if (seen.length === 0) {
        sessions[0]?.say(Array.from({ length: 1_500 }, () => change(first)));
        await client.get("a"); // The answer comes behind them.
      }
      seen.push(event.case === "state" ? event.value.name : (event.value?.owner ?? ""));
      if (seen.at(-1) === "change 2" || seen.length > 5) break;
    }
    assert.deepEqual(seen, ["state 1", "state 2", "change 2"]);
    await client.close();
  });
});

describe("a token", () => {
  it("of a function is asked for with each stream, and is not waited for without a limit", async () => {
    const { address, sessions } = await fake({ getLock: () => ({ case: "getLock", value: { lock: {} } }) });
    let count = 0;
    const client = new Client(address, { logger: quiet, token: async () => `token-${++count}` });
    await client.get("a");
    sessions[0]?.end();
    await until(() => sessions[0]?.isOver ?? false);
    await client.get("a");
    assert.deepEqual(
      sessions.map(({ authorization, number }) => [authorization, number]),
      [
        ["Bearer token-1", 1n],
        ["Bearer token-2", 2n],
      ],
    );
    await client.close();
    const begin = performance.now();
    const endless = settings(address, { logger: quiet, token: () => new Promise(() => undefined) });
    await assert.rejects(endless.token(), (error) => error instanceof Unavailable && /5000 ms/.test(error.message));
    assert.ok(performance.now() - begin < 7_000);
    const broken = settings(address, {
      logger: quiet,
      token: () => {
        throw new RangeError("mine");
      },
    });
    await assert.rejects(broken.token(), (error) => error instanceof Unavailable && /mine/.test(error.message));
  });
});

describe("the version", () => {
  it("that the server is told is that of the package", async () => {
    const { address, sessions } = await fake({ getLock: () => ({ case: "getLock", value: { lock: {} } }) });
    const client = new Client(address, { logger: quiet });
    await client.get("a");
    const { version } = JSON.parse(await readFile("package.json", "utf8"));
    assert.equal(sessions[0]?.version, version);
    await client.close();
  });
});

describe("the redlock adapter", () => {
  it("has the error of a loss that comes before the routine, and needs no listener of errors", async () => {
    const held = { signal: AbortSignal.abort(new LeaseLost("forced")) };
    const client = { usingAll: (_names: unknown, _options: unknown, work: (locks: object) => unknown) => work(held) };
    const error = await new Redlock(client as unknown as Client).using(["a"], 1_000, async (signal) => signal.error);
    assert.ok(error instanceof ExecutionError);
  });
});
