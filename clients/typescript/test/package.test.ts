import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtemp, rename, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { promisify } from "node:util";
import { context, type Span, trace } from "@opentelemetry/api";
import { LeaseLost, LockHeld, PermissionDenied, Unauthenticated, Unavailable } from "fencepost-client";
import Redlock, { ExecutionError, ResourceLockedError } from "fencepost-client/redlock";
import { TestServer } from "fencepost-client/testing";
import { aborted, command, connect, program, serve } from "./support.js";

describe("the redlock adapter", { concurrency: true }, () => {
  it("uses, extends and releases resources as npm redlock does", async () => {
    const server = await serve();
    const redlock = new Redlock(connect(server.address), { retryCount: 1, retryDelay: 1_000, retryJitter: 0 });
    const result = await redlock.using(["a", "b"], 3_000, async (signal) => {
      await assert.rejects(redlock.acquire(["b"], 1_000), ResourceLockedError);
      assert.equal(signal.aborted, false);
      return 7;
    });
    assert.equal(result, 7);
    let lock = await redlock.acquire(["a"], 2_000);
    assert.deepEqual([lock.resources, lock.tokens.length], [["a"], 1]);
    const { expiration } = lock;
    lock = await lock.extend(20_000);
    assert.ok(lock.expiration > expiration + 10_000);
    await lock.release();
    await assert.rejects(redlock.release(await expired(redlock)), ExecutionError);
    await redlock.quit();
  });

  it("aborts the signal with the error of a lost lock", async () => {
    const server = await serve();
    const redlock = new Redlock(connect(server.address));
    const events: Error[] = [];
    const atAbort: unknown[] = [];
    redlock.on("error", (error) => events.push(error));
    const used = redlock.using(["lost", "other"], 30_000, async (signal) => {
      signal.addEventListener("abort", () => atAbort.push(signal.error));
      const [holder] = (await connect(server.address).get("lost")).holders;
      await command(server.address, "force-release", "default/lost", String(holder?.fencingToken));
      await aborted(signal);
      throw signal.error;
    });
    await assert.rejects(used, (error) => error instanceof ExecutionError && error.cause instanceof LeaseLost);
    const error = await used.catch((error) => error);
    assert.deepEqual([atAbort, events], [[error], [error]]);
  });

  it("emits each error, and needs no listener for it", async () => {
    const server = await serve();
    const redlock = new Redlock(connect(server.address), { retryCount: 0 });
    const lock = await redlock.acquire(["held"], 30_000);
    await assert.rejects(redlock.acquire(["held"], 30_000), ResourceLockedError);
    const events: Error[] = [];
    redlock.on("error", (error) => events.push(error));
    await assert.rejects(redlock.acquire(["held"], 30_000), (error) => error === events[0]);
    assert.equal(lock.value, String(lock.tokens[0]));
    assert.deepEqual([lock.attempts, await lock.release()], [[], { attempts: [] }]);
  });
});

async function expired(redlock: Redlock) {
  const lock = await redlock.acquire(["expired"], 1_000);
  await new Promise((done) => setTimeout(done, 1_050));
  return lock;
}

describe("credentials", () => {
  it("TLS, client certificates and a bearer token that is replaced in its file", async () => {
    const folder = await mkdtemp(join(tmpdir(), "fencepost-"));
    const file = (name: string) => join(folder, name);
    const openssl = (...args: string[]) => execFileSync("openssl", args, { cwd: folder, stdio: "ignore" });
    for (const name of ["ca", "other"]) {
      openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        `${name}.key`,
        "-out",
        `${name}.pem`,
        "-subj",
        `/CN=${name}`,
        "-days",
        "2",
      );
    }
    await writeFile(file("server.ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1");
    await writeFile(file("client.ext"), "subjectAltName=DNS:reports.example");
    for (const name of ["server", "client"]) {
      openssl(
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        `${name}.key`,
        "-out",
        `${name}.csr`,
        "-subj",
        `/CN=${name}`,
      );
      openssl(
        "x509",
        "-req",
        "-in",
        `${name}.csr`,
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-out",
        `${name}.pem`,
        "-days",
        "2",
        "-extfile",
        `${name}.ext`,
      );
    }
    const hash = (token: string) => createHash("sha256").update(token).digest("hex");
    await writeFile(file("bearers"), `one:${hash("token-one")}\ntwo:${hash("token-two")}\n`);
    await writeFile(
      file("fencepost.toml"),
      `[tls]
certificate = "${file("server.pem")}"
key = "${file("server.key")}"
listeners = "all"
client_ca = "${file("ca.pem")}"
client_auth = "optional"
[auth]
bearer_file = "${file("bearers")}"
[[auth.rules]]
identities = ["token:two", "dns:reports.example"]
namespaces = ["default"]
verbs = ["acquire", "read"]
[[auth.rules]]
identities = ["token:one"]
namespaces = ["default"]
verbs = ["read"]
[namespaces.default]
embedded = { path = ":memory:" }
`,
    );
    await using server = await TestServer.start({ program, config: file("fencepost.toml") });
    const address = `https://localhost:${server.address.split(":").at(-1)}`;
    const caFile = file("ca.pem");
    const certificate = connect(address, { caFile, certFile: file("client.pem"), keyFile: file("client.key") });
    await certificate.using("mutual", async () =>
      assert.equal((await certificate.get("mutual")).holders[0]?.identity, "dns:reports.example"),
    );
    await assert.rejects(connect(address, { caFile: file("other.pem") }).acquire("wrong"), Unavailable);
    await assert.rejects(connect(address, { caFile }).acquire("nobody"), Unauthenticated);

    const bearerFile = file("token");
    const replace = async (token: string) => {
      await writeFile(`${bearerFile}.new`, token);
      await rename(`${bearerFile}.new`, bearerFile);
    };
    await replace("token-none");
    const bearer = connect(address, { caFile, bearerFile });
    await assert.rejects(bearer.acquire("bearer"), Unauthenticated);
    await replace("token-one");
    await assert.rejects(bearer.acquire("bearer"), PermissionDenied);
    await replace("token-two");
    const fresh = connect(address, { caFile, bearerFile });
    await fresh.using("bearer", () => undefined);
  });
});

describe("the package", () => {
  it("is a CommonJS module too", async () => {
    const server = await serve();
    const text = `
      const { Client } = require("fencepost-client");
      const { TestServer } = require("fencepost-client/testing");
      const client = new Client();
      client.using("cjs", (lock) => console.log(lock.check() > 0, typeof TestServer.start)).then(() => client.close());`;
    const env = { ...process.env, FENCEPOST_ADDR: server.address };
    const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=commonjs", "-e", text], { env });
    assert.match(stdout, /true function/);
  });

  it("has each class once, also in a program that uses both formats", async () => {
    const require = createRequire(import.meta.url);
    const modules = ["fencepost-client", "fencepost-client/fence", "fencepost-client/redlock", "fencepost-client/testing"];
    for (const name of modules) {
      const [esm, cjs] = [await import(name), require(name)];
      const shared = Object.keys(cjs).filter((key) => key !== "default");
      assert.ok(shared.length > 0);
      for (const key of shared) assert.equal(esm[key], cjs[key], `${name}: ${key}`);
    }
    assert.equal(require("fencepost-client/redlock").default, Redlock);
  });

  it("takes locks although the tracer fails", async () => {
    const fail = () => {
      throw new RangeError("mine");
    };
    const tracers = [{ startSpan: fail }, { startSpan: () => ({ end: fail, recordException: fail, setStatus: fail }) }];
    const server = await serve();
    for (const tracer of tracers) {
      trace.setGlobalTracerProvider({ getTracer: () => tracer as never });
      const client = connect(server.address);
      const lock = await client.acquire("traced");
      await assert.rejects(client.acquire("traced"), LockHeld);
      await lock.release();
      trace.disable();
    }
  });

  it("starts servers on Unix sockets too", async () => {
    const folder = await mkdtemp(join(tmpdir(), "fencepost-"));
    const server = await serve({ listen: `unix:${join(folder, "s")}` });
    await connect(server.address).using("unix", () => undefined);
    await assert.rejects(TestServer.start({ program, args: ["--no-such-flag"] }), /no-such-flag/);
  });

  it("records spans of its acquires, and a loss in the span around", async () => {
    const spans: { name: string; events: string[]; attributes: unknown }[] = [];
    const span = (name: string, attributes: unknown) => {
      const record = { name, events: [] as string[], attributes };
      spans.push(record);
      const methods = {
        addEvent: (event: string) => record.events.push(event),
        recordException: () => undefined,
        setStatus: () => undefined,
      };
      return { ...methods, end: () => undefined, spanContext: () => ({}) } as unknown as Span;
    };
    const around = span("around", {});
    context.setGlobalContextManager({
      active: () => trace.setSpan(root, around),
      with: (_, work, self, ...args) => work.call(self as never, ...args),
      bind: (_, target) => target,
      enable: () => context as never,
      disable: () => context as never,
    });
    const root = {
      getValue: (key: symbol) => values.get(key),
      setValue: (key: symbol, value: unknown) => values.set(key, value) && root,
      deleteValue: () => root,
    };
    const values = new Map<symbol, unknown>();
    const startSpan = (name: string, { attributes }: { attributes: unknown }) => span(name, attributes);
    trace.setGlobalTracerProvider({ getTracer: () => ({ startSpan }) as never });
    const server = await serve();
    const lock = await connect(server.address).acquire("traced", { waitMs: 5 });
    await command(server.address, "force-release", "default/traced", String(lock.token));
    await new Promise((done) => lock.onLost(done));
    const shown = spans.map(({ name, events }) => [name, events]);
    assert.deepEqual(shown.slice(0, 2), [
      ["around", ["lost"]],
      ["fencepost.acquire", []],
    ]);
    assert.deepEqual(spans[1]?.attributes, {
      "fencepost.namespace": "default",
      "fencepost.lock": "traced",
      "fencepost.wait_ms": 5,
    });
    trace.disable();
    context.disable();
  });
});
