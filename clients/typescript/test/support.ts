// Servers and a proxy for the tests.
import { execFile } from "node:child_process";
import { once } from "node:events";
import net from "node:net";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Client, type ClientOptions } from "fencepost-client";
import { TestServer, type TestServerOptions } from "fencepost-client/testing";

export const program = process.env.FENCEPOST_BIN || "fencepost";
const silent = { info: () => undefined, warn: () => undefined };

/** Ends what the tests of a file have started. */
const ends: (() => Promise<unknown> | unknown)[] = [];
after(async () => {
  for (const end of ends.reverse()) await end();
});

export function atEnd(end: () => Promise<unknown> | unknown): void {
  ends.push(end);
}

export async function serve(options?: TestServerOptions): Promise<TestServer> {
  const server = await TestServer.start(options);
  ends.push(() => server.stop());
  return server;
}

export function connect(addresses: string | readonly string[], options: ClientOptions = {}): Client {
  const client = new Client(addresses, { logger: silent, ...options });
  ends.push(() => client.close());
  return client;
}

/** The command line, for what only operators do. */
export async function command(address: string, ...args: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(program, args, { env: { PATH: process.env.PATH, FENCEPOST_ADDR: address } });
  return stdout;
}

/** Resolves when a signal has aborted. */
export async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) await once(signal, "abort");
}

/** Resolves when `is` becomes true; rejects after `limitMs`. */
export async function until(is: () => boolean | Promise<boolean>, limitMs = 10_000): Promise<void> {
  for (const end = performance.now() + limitMs; !(await is()); await sleep(20)) {
    if (performance.now() > end) throw new Error(`not within ${limitMs} ms: ${is}`);
  }
}

/** A way to a server, whose connections can be made silent, slow or cut. */
export class TcpProxy {
  readonly #pairs: { sockets: net.Socket[]; isSilent: boolean }[] = [];
  readonly #server: net.Server;
  readonly address: string;
  delayMs = 0;
  /** New connections are silent from the start. */
  isDeaf = false;
  /** How many connections have been opened. */
  opened = 0;

  private constructor(server: net.Server, address: string) {
    this.#server = server;
    this.address = address;
  }

  static async to(address: string): Promise<TcpProxy> {
    const [host = "", port = ""] = address.split(":");
    const server = net.createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const proxy = new TcpProxy(server, `127.0.0.1:${(server.address() as net.AddressInfo).port}`);
    server.on("connection", (near) => proxy.#pass(near, net.connect(Number(port), host)));
    ends.push(() => proxy.close());
    return proxy;
  }

  #pass(near: net.Socket, far: net.Socket): void {
    const pair = { sockets: [near, far], isSilent: this.isDeaf };
    this.#pairs.push(pair);
    this.opened++;
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      from.setNoDelay();
      from.on("data", (data) => {
        if (pair.isSilent) return;
        if (this.delayMs > 0) setTimeout(() => to.write(data), this.delayMs);
        else to.write(data);
      });
      from.on("close", () => pair.isSilent || to.destroy());
      from.on("error", () => undefined);
    }
  }

  /** The connections that are open now go silent; new ones work. */
  silence(): void {
    for (const pair of this.#pairs) pair.isSilent = true;
  }

  /** The connections that are open now are reset. */
  cut(): void {
    for (const { sockets } of this.#pairs.splice(0)) for (const socket of sockets) socket.resetAndDestroy();
  }

  close(): void {
    this.#server.close();
    this.cut();
  }
}
