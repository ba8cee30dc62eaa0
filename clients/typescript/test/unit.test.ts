// What needs no server of Fencepost.
import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
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
