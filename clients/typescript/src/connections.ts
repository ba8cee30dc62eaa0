import { setMaxListeners } from "node:events";
import { readFileSync } from "node:fs";
import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import tls from "node:tls";
import { type CallOptions, type Client, Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { FencepostError, typed, Unauthenticated } from "./errors.js";
import { ElectionService } from "./gen/fencepost/v1/election_pb.js";
import { LockService } from "./gen/fencepost/v1/lock_pb.js";
import type { Address, Settings } from "./options.js";
import { now, pauses } from "./time.js";

const CONNECT_MS = 4_000;
/**
 * A connection with calls in flight is pinged after 5 s without data, and given up without an answer for as long again. One
 * without calls is closed, so that a client that was dropped leaves nothing behind.
 */
const PING = { pingIntervalMs: 5_000, pingTimeoutMs: 5_000, idleConnectionTimeoutMs: 10_000 };
const TOKEN_AGE_MS = 10_000;
/** Proxies allow about 100 streams on a connection. */
const WAITS_ON_CONNECTION = 90;
/** How long one call may take that does not wait. */
export const CALL_MS = 5_000;
/** How long a call may take with its repetitions. */
const CALL_IN_ALL_MS = 10_000;

/** The reason with which a call is cancelled, so that its stream is reset with CANCEL. */
export const cancelled = () => new ConnectError("cancelled", Code.Canceled);

/** Sends a request over a connection. */
export type Send<T> = (to: Connection, options: CallOptions) => Promise<T>;

/** One HTTP/2 connection to one server, opened by its first call. It keeps the process alive only while there are calls. */
export class Connection {
  readonly locks: Client<typeof LockService>;
  readonly elections: Client<typeof ElectionService>;
  readonly #sockets = new Set<net.Socket>();
  /** Calls and streams in flight. */
  calls = 0;
  #isRetired = false;

  constructor(
    readonly address: Address,
    settings: Settings,
    authorize: Interceptor,
  ) {
    const { origin } = address;
    const createConnection = () => {
      const socket = connect(address, settings);
      this.#sockets.add(socket);
      return socket.once("close", () => this.#sockets.delete(socket));
    };
    const sessionManager = new Http2SessionManager(origin, PING, { createConnection });
    const transport = createGrpcTransport({ baseUrl: origin, sessionManager, interceptors: [authorize] });
    this.locks = createClient(LockService, transport);
    this.elections = createClient(ElectionService, transport);
  }

  end(): void {
    if (--this.calls === 0 && this.#isRetired) this.close();
  }

  /** Closes the connection when its last call has ended. */
  retire(): void {
    this.#isRetired = true;
    if (this.calls === 0) this.close();
  }

  close(): void {
    // By the sockets: Http2SessionManager.abort leaves the error of a connection that fails right now without a listener.
    for (const socket of this.#sockets) socket.destroy(new Error("the connection is closed"));
  }
}

/** The connections to the server in use, which is the next address after a failure. */
export class Connections {
  readonly #settings: Settings;
  readonly #closed = new AbortController();
  #index = 0;
  #token = "";
  #tokenReadAt = Number.NEGATIVE_INFINITY;
  #current: Connection;
  /** Waits have connections of their own, so that they do not keep renewals and releases from a proxy's streams. */
  #waits: Connection[] = [];

  constructor(settings: Settings) {
    this.#settings = settings;
    this.#current = this.#open();
  }

  /** The connection for renewals, releases and other short calls. */
  current(): Connection {
    return this.#current;
  }

  /** A connection for a call that waits. */
  forWait(): Connection {
    const free = this.#waits.find(({ calls }) => calls < WAITS_ON_CONNECTION);
    if (!free) this.#waits.push(this.#open());
    return free ?? this.forWait();
  }

  /** Makes later calls go over a new connection to the next address, unless this one was replaced before. */
  replace(connection: Connection, problem: string): void {
    if (connection !== this.#current && !this.#waits.includes(connection)) return;
    const { addresses, logger } = this.#settings;
    for (const old of [this.#current, ...this.#waits]) old.retire();
    this.#index = (this.#index + 1) % addresses.length;
    this.#current = this.#open();
    this.#waits = [];
    if (addresses.length > 1) logger.info(`fencepost: ${this.#current.address.text} is used now: ${problem}`);
  }

  /** What a call or stream of this connection failed with. Another connection is used from now on if that helps. */
  failed(connection: Connection, cause: unknown): FencepostError {
    const error = typed(cause, connection.address.text);
    const isOfLock = ["QUEUE_FULL", "WAIT_TIMEOUT"].includes(error.reason); // Another server would say the same.
    const isElsewhere = error.retry === "elsewhere" || (error.retry === "later" && !isOfLock && this.count > 1);
    if (isElsewhere && !this.#closed.signal.aborted) this.replace(connection, error.message);
    return error;
  }

  /** Sends a request once. Rejects with a FencepostError, also when the signal aborts. */
  async once<T>(send: Send<T>, timeoutMs: number, connection: Connection, signal?: AbortSignal): Promise<T> {
    const call = link([signal], cancelled);
    connection.calls++;
    try {
      // grpc-timeout has to be a whole number.
      return await send(connection, { timeoutMs: Math.ceil(timeoutMs), signal: call.signal });
    } catch (cause) {
      throw signal?.aborted ? typed(cause, connection.address.text) : this.failed(connection, cause);
    } finally {
      call.unlink();
      connection.end();
    }
  }

  /**
   * Repeats `attempt` while that helps until `end`, and for `extra` times afterwards if no server answers. `waits`: also if the
   * server can serve it later, and the pauses keep the process alive.
   */
  async repeat<T>(
    attempt: () => Promise<T>,
    end: number,
    { extra = 0, waits = false, signal }: { extra?: number; waits?: boolean; signal?: AbortSignal } = {},
  ): Promise<T> {
    const pause = pauses();
    for (;;) {
      try {
        return await attempt();
      } catch (error) {
        if (!(error instanceof FencepostError)) throw error;
        const pauseMs = error.pauseMs ?? pause.next().value;
        const isInTime = now() + pauseMs < end && !(signal ?? this.#closed.signal).aborted;
        const helps = error.retry === "elsewhere" ? isInTime || extra-- > 0 : error.retry === "later" && waits && isInTime;
        if (!helps) throw error;
        await sleep(pauseMs, undefined, { signal: signal ?? this.#closed.signal, ref: waits });
      }
    }
  }

  /**
   * Sends a request that does not wait, again until a server answers or for `limitMs`, over the connection `first` at first.
   * `waits`: as in `repeat`.
   */
  call<T>(
    send: Send<T>,
    limitMs = CALL_IN_ALL_MS,
    { first, waits = false }: { first?: Connection | undefined; waits?: boolean } = {},
  ): Promise<T> {
    const end = now() + limitMs;
    const attempt = () => {
      const to = first ?? this.#current;
      first = undefined;
      // The last third is left for another connection.
      return this.once(send, Math.min(CALL_MS, (Math.max(end - now(), 1) * 2) / 3), to);
    };
    return this.repeat(attempt, end, { waits });
  }

  /** How many servers there are. */
  get count(): number {
    return this.#settings.addresses.length;
  }

  /** Ends all calls and connections. */
  close(): void {
    this.#closed.abort();
    for (const connection of [this.#current, ...this.#waits]) connection.close();
  }

  #open(): Connection {
    const address = this.#settings.addresses[this.#index] ?? this.#settings.addresses[0];
    return new Connection(address, this.#settings, (next) => async (request) => {
      const token = this.#bearer();
      if (token) request.header.set("authorization", token);
      try {
        return await next(request);
      } catch (error) {
        const other = ConnectError.from(error).code === Code.Unauthenticated ? this.#bearer({ isRejected: true }) : token;
        if (other === token || request.stream) throw error;
        request.header.set("authorization", other);
        return next(request);
      }
    });
  }

  /** The bearer token. Its file is read again every 10 s and after a rejection; while it is unusable the token before stays. */
  #bearer({ isRejected = false } = {}): string {
    const { bearerFile } = this.#settings;
    if (!bearerFile || (!isRejected && now() - this.#tokenReadAt < TOKEN_AGE_MS)) return this.#token;
    try {
      const token = readFileSync(bearerFile, "utf8").trim();
      if (token) this.#token = `Bearer ${token}`;
      this.#tokenReadAt = now();
    } catch (cause) {
      if (!this.#token) throw new Unauthenticated("BAD_CREDENTIALS", (cause as Error).message, { cause });
    }
    return this.#token;
  }
}

interface Link {
  signal: AbortSignal | undefined;
  abort: () => void;
  unlink: () => void;
}

/** A signal that aborts with the first of the signals, and with its reason or the one that `reason` makes. */
export function link(signals: (AbortSignal | undefined)[], reason?: () => Error): Link {
  const all = signals.filter((signal) => signal !== undefined);
  // Node warns from 11 listeners on, and as many calls may share a signal as there are calls.
  setMaxListeners(0, ...all);
  if (all.length < 2 && !(reason && all[0])) return { signal: all[0], abort: () => undefined, unlink: () => undefined };
  const controller = new AbortController();
  const abort = () => controller.abort(reason?.() ?? all.find(({ aborted }) => aborted)?.reason);
  for (const signal of all) signal.addEventListener("abort", abort);
  if (all.some(({ aborted }) => aborted)) abort();
  const unlink = () => {
    for (const signal of all) signal.removeEventListener("abort", abort);
  };
  return { signal: controller.signal, abort, unlink };
}

/** Opens the socket of a connection. The certificates are read again each time. */
function connect({ host, port, path, encrypted }: Address, { caFile, certFile, keyFile }: Settings): net.Socket {
  const pem = (file: string | undefined) => file && readFileSync(file);
  const credentials = () => ({ ca: pem(caFile), cert: pem(certFile), key: pem(keyFile), servername: net.isIP(host) ? "" : host });
  const socket = encrypted
    ? tls.connect({ host, port, ALPNProtocols: ["h2"], ...credentials() })
    : net.connect(path === undefined ? { host, port } : { path });
  socket.setNoDelay();
  // The session reports it to the calls; a late one has no listener any more.
  socket.on("error", () => undefined);
  // The first bytes are the server's settings.
  const checkAnswer = () => socket.bytesRead > 0 || socket.destroy(new Error(`no answer within ${CONNECT_MS} ms`));
  const timer = setTimeout(checkAnswer, CONNECT_MS).unref();
  socket.once("close", () => clearTimeout(timer));
  return socket;
}
