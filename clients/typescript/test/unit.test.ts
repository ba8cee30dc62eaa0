// What needs no server of Fencepost.
import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { inspect } from "node:util";
import { create } from "@bufbuild/protobuf";
import { Core } from "../dist/esm/core.js";
import { LeaseSchema } from "../dist/esm/gen/fencepost/v1/lock_pb.js";
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

const grant = create(LeaseSchema, { leaseId: "secret-id", name: "a", fencingToken: 7n, ttl: { seconds: 60n } });

describe("a held lock", () => {
  it("does not show the id of its lease, with which anybody can release it", async () => {
    const core = new Core(settings("127.0.0.1:1", { logger: quiet }));
    const [lease] = await core.take("a", { renew: false }, () => () => async () => [grant]);
    assert.ok(lease);
    const lock: Lock = Reflect.construct(Lock, [core, lease]);
    const shown = inspect(lock, { depth: 20, showHidden: true });
    assert.match(shown, /token: 7/);
    assert.doesNotMatch(shown, /secret-id/);
    assert.doesNotMatch(JSON.stringify(lease), /secret-id/);
    lease.finish();
  });
});
