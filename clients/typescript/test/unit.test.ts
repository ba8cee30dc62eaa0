// What needs no server of Fencepost.
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, writeFileSync } from "node:fs";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { inspect } from "node:util";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { Client, FencepostError, LeaseLost } from "fencepost-client";
import Redlock, { ExecutionError } from "fencepost-client/redlock";
import { Acquisition, Gate } from "../dist/esm/acquire.js";
import { Connections } from "../dist/esm/connections.js";
import { Core } from "../dist/esm/core.js";
import { ElectionService } from "../dist/esm/gen/fencepost/v1/election_pb.js";
import { type Lease as Grant, LeaseSchema, LockService } from "../dist/esm/gen/fencepost/v1/lock_pb.js";
import { Lock } from "../dist/esm/lock.js";
import { settings } from "../dist/esm/options.js";

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

/** A server with these services, and its address. */
async function fake(routes: (router: ConnectRouter) => void): Promise<[http2.Http2Server, string]> {
  const server = http2.createServer(connectNodeAdapter({ routes }));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return [server, `127.0.0.1:${(server.address() as AddressInfo).port}`];
}

const grant = create(LeaseSchema, { leaseId: "secret-id", name: "a", fencingToken: 7n, ttl: { seconds: 60n } });

describe("a held lock", () => {
  it("does not show the id of its lease, with which anybody can release it", async () => {
    const core = new Core(settings("127.0.0.1:1", { logger: quiet }));
    const [lease] = await core.take(["a"], { renew: false }, () => () => async () => [grant]);
    assert.ok(lease);
    const lock: Lock = Reflect.construct(Lock, [core, lease]);
    const shown = inspect(lock, { depth: 20, showHidden: true });
    assert.match(shown, /token: 7/);
    assert.doesNotMatch(shown, /secret-id/);
    assert.doesNotMatch(JSON.stringify(lease), /secret-id/);
    lease.finish();
  });
});

describe("an acquire that ended", () => {
  const unavailable = (reason: string) => new ConnectError("away", Code.Unavailable, { "fencepost-reason": reason });
  /** What was released after these answers. */
  const undone = async (...answers: (Error | Grant[])[]) => {
    const released: string[] = [];
    const send = () => async () => {
      const answer = answers.shift();
      if (Array.isArray(answer)) return answer;
      throw answer;
    };
    const release = async (grants: Grant[]) => void released.push(...grants.map(({ leaseId }) => leaseId));
    const work: Promise<void>[] = [];
    const connections = new Connections(settings("127.0.0.1:1", { logger: quiet }));
    const acquisition = new Acquisition(connections, { count: 1, send, release }, (undoing) => work.push(undoing), new Gate());
    await assert.rejects(acquisition.run(0, new AbortController().signal), { name: "Unavailable" });
    await Promise.all(work);
    connections.close();
    return released;
  };

  for (const reason of ["BACKEND_UNAVAILABLE", "NO_QUORUM"]) {
    it(`with ${reason} is undone, when the store is back, because it may have been granted`, async () => {
      assert.deepEqual(await undone(unavailable(reason), unavailable(reason), [grant]), ["secret-id"]);
    });
  }

  it("with BACKEND_QUARANTINED is not repeated", async () => {
    assert.deepEqual(await undone(unavailable("BACKEND_QUARANTINED"), [grant]), []);
  });
});

describe("an answer that lacks a lease", () => {
  const released: string[] = [];
  const locks = {
    acquire: ({ name }: { name: string }) => (name === "whole" ? { lease: grant } : {}),
    acquireAll: ({ locks }: { locks: { name: string }[] }) => ({
      leases: locks.slice(1).map(({ name }) => ({ ...grant, leaseId: name })),
    }),
    renew: () => ({}),
    getLock: () => ({}),
    release: ({ leaseId }: { leaseId: string }) => {
      released.push(leaseId);
      return {};
    },
    releaseAll: ({ leaseIds }: { leaseIds: string[] }) => {
      released.push(...leaseIds);
      return { results: [{}] };
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
    [
      "the result of a release",
      async (client) => {
        const all = await Promise.all([client.acquire("whole"), client.acquire("whole")]);
        await Promise.all(all.map((lock) => lock.release()));
      },
      ["secret-id", "secret-id"],
    ],
  ] satisfies [string, (client: Client) => Promise<unknown>, string[]?][]) {
    it(`is an error, and its grants are released: ${what}`, async () => {
      const [server, address] = await fake((router) =>
        router.service(LockService, locks).service(ElectionService, { campaign: () => ({}) }),
      );
      const client = new Client(address, { logger: quiet });
      await assert.rejects(call(client), (error) => error instanceof FencepostError && error.reason === "INCOMPLETE");
      await client.close();
      server.close();
      assert.deepEqual(released.splice(0), grants);
    });
  }
});

describe("a lost lease", () => {
  it("is released in the background if it is unrenewed, because the server may still count on it", async () => {
    const released: string[] = [];
    const service = {
      release: ({ leaseId }: { leaseId: string }) => {
        released.push(leaseId);
        if (leaseId === "c") throw new ConnectError("gone", Code.NotFound);
        return {};
      },
    };
    const [server, address] = await fake((router) => router.service(LockService, service));
    const log: string[] = [];
    const core = new Core(settings(address, { logger: { ...quiet, warn: (line) => log.push(line) } }));
    for (const [leaseId, cause] of [
      ["a", "forced"],
      ["b", "unrenewed"],
      ["c", "unrenewed"],
    ] as const) {
      const [lease] = await core.take(["a"], { renew: false }, () => () => async () => [{ ...grant, leaseId }]);
      lease?.lose(cause);
    }
    await new Promise(setImmediate);
    await core.close();
    server.close();
    assert.deepEqual(released, ["b", "c"]);
    assert.equal(log.length, 3, "one line for each loss");
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
