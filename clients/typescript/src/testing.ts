/**
 * A server for tests: `fencepost serve` in memory, on a free port.
 *
 * @packageDocumentation
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "./client.js";
import type { ClientOptions } from "./options.js";

/** Options of {@link TestServer.start}. */
export interface TestServerOptions {
  /** The program. Default: `FENCEPOST_BIN`, or that of the package `fencepost-server`, or `fencepost` in the path. */
  program?: string;
  /** Where it listens: `host:port` or `unix:path`. Default: a free port of 127.0.0.1. */
  listen?: string;
  /** A configuration file in place of the namespace `default` in memory, for example for TLS and rules. */
  config?: string;
  /** More arguments of `fencepost serve`. */
  args?: readonly string[];
  /** How long the start may take, in milliseconds. Default: 10,000. */
  startMs?: number;
}

/** The program of the package `fencepost-server`, where the project that runs has it. */
function packaged(): string | undefined {
  try {
    const require = createRequire(join(process.cwd(), "package.json"));
    return (require("fencepost-server") as { program: string }).program;
  } catch {
    return undefined;
  }
}

/** A server in memory with the namespace `default`. It ends when this process exits, but not when a signal kills it. */
export class TestServer implements AsyncDisposable {
  /** Its address, for {@link Client}. */
  readonly address: string;
  /** Its process. */
  readonly process: ChildProcess;
  readonly #folder: string;
  readonly #kill: () => void;

  private constructor(address: string, process: ChildProcess, folder: string, kill: () => void) {
    this.address = address;
    this.process = process;
    this.#folder = folder;
    this.#kill = kill;
  }

  /** Starts a server, and resolves when it listens. Rejects with its output if it ends before. */
  static async start(options: TestServerOptions = {}): Promise<TestServer> {
    const {
      program = process.env.FENCEPOST_BIN || packaged() || "fencepost",
      listen = "127.0.0.1:0",
      config,
      args = [],
      startMs = 10_000,
    } = options;
    const folder = await mkdtemp(join(tmpdir(), "fencepost-"));
    const ready = join(folder, "ready");
    const all = ["serve", ...(config ? ["--config", config] : ["--memory"]), "--listen", listen, "--ready-file", ready, ...args];
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("FENCEPOST_")));
    const server = spawn(program, all, { env, stdio: ["ignore", "pipe", "pipe"] });
    const kill = () => server.kill("SIGKILL");
    process.once("exit", kill);
    let output = "";
    for (const stream of [server.stdout, server.stderr]) {
      stream.on("data", (text: Buffer) => (output = (output + text).slice(-10_000)));
    }
    let problem: Error | undefined;
    server.once("error", (error) => (problem = error));
    server.once("exit", (code, signal) => (problem ??= new Error(`${program} ended with ${code ?? signal}:\n${output}`)));
    const end = performance.now() + startMs;
    for (;;) {
      const address = (await readFile(ready, "utf8").catch(() => "")).trim();
      if (address) {
        // The process of the test may end while the server runs.
        server.unref();
        for (const stream of [server.stdout, server.stderr]) (stream as unknown as { unref(): void }).unref();
        return new TestServer(address, server, folder, kill);
      }
      if (performance.now() > end) problem ??= new Error(`${program} does not listen after ${startMs} ms:\n${output}`);
      if (problem) {
        kill();
        process.off("exit", kill);
        await rm(folder, { recursive: true, force: true });
        throw problem;
      }
      await sleep(10);
    }
  }

  /** A client of this server. Close it before the server stops. */
  client(options?: ClientOptions): Client {
    return new Client(this.address, options);
  }

  /** Ends the server at once, with all its locks. */
  async stop(): Promise<void> {
    process.off("exit", this.#kill);
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.ref();
      const exited = once(this.process, "exit");
      this.#kill();
      await exited;
    }
    await rm(this.#folder, { recursive: true, force: true });
  }

  /** {@link TestServer.stop} */
  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}
