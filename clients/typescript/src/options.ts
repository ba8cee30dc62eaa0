import { accessSync, constants } from "node:fs";
import { readFile } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import { inspect } from "node:util";
import { InvalidArgument, unanswered } from "./errors.js";

/** How long a function that gives the token may take. */
const TOKEN_MS = 5_000;

/** Where log lines go: `console`, or a logger with the same methods, such as pino or winston. One that fails ends nothing. */
export interface Logger {
  /** Reconnects and failovers, one line each. */
  info(message: string): void;
  /** Lost leases and unconfirmed releases, one line each. */
  warn(message: string): void;
}

/** Options of a {@link Client}. Each file defaults to the environment variable of the command line. */
export interface ClientOptions {
  /** The namespace of all locks. Default: `FENCEPOST_NAMESPACE`, or `default`. */
  namespace?: string;
  /** A label that operators see, 1 to 256 bytes. Default: `FENCEPOST_OWNER`, or `user@host:process`. */
  owner?: string;
  /** The TTL of leases in milliseconds. Default: the namespace's. */
  ttlMs?: number;
  /** A PEM file with the CA certificates that may sign the server's. Default: `FENCEPOST_CA_FILE`, or Node's own list. */
  caFile?: string;
  /** A PEM file with the client's certificate, for mutual TLS. Default: `FENCEPOST_CERT_FILE`. */
  certFile?: string;
  /** A PEM file with the key of the certificate. Default: `FENCEPOST_KEY_FILE`. */
  keyFile?: string;
  /** A file with a bearer token, which is read for each connection. Default: `FENCEPOST_BEARER_FILE`. */
  bearerFile?: string;
  /** A bearer token in place of that file, or a function that gives one for each connection, within 5 s. */
  token?: string | (() => string | Promise<string>);
  /** Default: `console`. */
  logger?: Logger;
}

/** How a claim shares its lock: alone, with other readers, or with other holders of `permits` (default 1) of `limit`. */
export type LockMode = "exclusive" | "shared" | { permits?: number; limit: number };

/** Options of a wait for one or several locks. */
export interface WaitOptions {
  /** How long to wait in the queue, in milliseconds. Default: 0, fails at once if the lock is held. `Infinity`: for ever. */
  waitMs?: number;
  /** The time to live of the lease, in milliseconds. It is renewed until the release. Default: that of the client. */
  ttlMs?: number;
  /** Shown to operators, at most 16 entries and 4 KiB. */
  metadata?: Record<string, string>;
  /** Who asks. Default: that of the client. */
  owner?: string;
  /**
   * Ends the wait: the call rejects with the signal's reason, and a grant under way is given back. In `using`, `usingAll` and
   * `lead` it also aborts the signal of the lock.
   */
  signal?: AbortSignal;
  /** `false`: the lease ends after its TTL unless it is extended by hand. Default: true. */
  renew?: boolean;
}

/** Options of `acquire` and `using`. */
export interface AcquireOptions extends WaitOptions {
  /** Default: `exclusive`. */
  mode?: LockMode;
  /**
   * Lets a holder take the lock again. Without `owner`, a nested `using` of the same asynchronous context takes part in the lease
   * of the outer one. With an `owner` that names a task, the server adds a hold to that owner's lease.
   */
  reentrant?: boolean;
  /**
   * For how many milliseconds from its grant on the lock stays taken, also if it is released sooner or the process ends: for jobs
   * that several processes start at about the same time. The namespace's largest TTL is the bound, which is checked before the job.
   * Default: 0.
   */
  atLeastMs?: number;
}

/** The address of a server. */
export interface Address {
  text: string;
  origin: string;
  path?: string;
  host: string;
  port: number;
  encrypted: boolean;
}

/** The settings of a client, with its defaults filled in. */
export interface Settings extends Pick<ClientOptions, "ttlMs" | "caFile" | "certFile" | "keyFile"> {
  addresses: [Address, ...Address[]];
  namespace: string;
  owner: string;
  logger: Logger;
  /** The bearer token of this moment, or nothing. */
  token: () => Promise<string>;
}

/** Fills in defaults from the environment. */
export function settings(addresses: string | readonly string[] | undefined, options: ClientOptions): Settings {
  const { env } = process;
  const list = addresses ?? (env.FENCEPOST_ADDR || "127.0.0.1:50051");
  const [first, ...others] = (typeof list === "string" ? list.split(",") : list).map((text) => parse(text.trim()));
  if (!first) throw invalid("addresses: at least one is required");
  const bearerFile = options.token === undefined ? (options.bearerFile ?? env.FENCEPOST_BEARER_FILE) : undefined;
  const all: Settings = {
    addresses: [first, ...others],
    namespace: options.namespace ?? (env.FENCEPOST_NAMESPACE || "default"),
    owner: options.owner ?? (env.FENCEPOST_OWNER || `${env.USER ?? "unknown"}@${os.hostname()}:${process.pid}`),
    ttlMs: options.ttlMs,
    caFile: options.caFile ?? env.FENCEPOST_CA_FILE,
    certFile: options.certFile ?? env.FENCEPOST_CERT_FILE,
    keyFile: options.keyFile ?? env.FENCEPOST_KEY_FILE,
    logger: guarded(options.logger ?? console),
    token: options.token === undefined ? ofFile(bearerFile) : ofCaller(options.token),
  };
  if (!all.certFile !== !all.keyFile) throw invalid("certFile and keyFile: give both or none");
  const { caFile, certFile, keyFile } = all;
  for (const [field, file] of Object.entries({ caFile, certFile, keyFile, bearerFile })) {
    try {
      accessSync(file || ".", constants.R_OK);
    } catch (error) {
      throw invalid(`${field}: ${(error as Error).message}`);
    }
  }
  // Of a Unix socket the host is localhost.
  const isLocal = ({ host }: Address) => ["localhost", "::1"].includes(host) || (net.isIPv4(host) && host.startsWith("127."));
  const open = all.addresses.find((address) => !address.encrypted && !isLocal(address));
  const [secured] = Object.entries({ token: options.token, bearerFile, caFile, certFile }).find(([, given]) => given) ?? [];
  if (open && secured) throw invalid(`${secured}: the connection to ${open.text} is not encrypted; use https://`);
  return all;
}

/** The token in a file. While it cannot be read or is empty, because it is being replaced, the one before stays in use. */
function ofFile(file: string | undefined): Settings["token"] {
  let token = "";
  return async () => {
    if (!file) return "";
    const text = await readFile(file, "utf8").catch((cause: Error) => cause);
    token = (typeof text === "string" && text.trim()) || token;
    if (!token) throw unanswered(`bearerFile: ${text instanceof Error ? text.message : "it is empty"}`, text);
    return token;
  };
}

function ofCaller(token: string | (() => string | Promise<string>)): Settings["token"] {
  if (typeof token === "string") return async () => token;
  return async () => {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`it gave none within ${TOKEN_MS} ms`)), TOKEN_MS).unref();
    });
    try {
      return await Promise.race([token(), late]);
    } catch (cause) {
      throw unanswered(`token: ${inspect(cause)}`, cause);
    } finally {
      clearTimeout(timer);
    }
  };
}

/** Calls code of the user, whose failure is logged and ends nothing. */
export async function guard(logger: Logger | undefined, call: () => unknown): Promise<void> {
  try {
    await call();
  } catch (error) {
    logger?.warn(`fencepost: a callback failed: ${inspect(error)}`);
  }
}

function guarded(logger: Logger): Logger {
  return {
    info: (message) => void guard(undefined, () => logger.info(message)),
    warn: (message) => void guard(undefined, () => logger.warn(message)),
  };
}

function parse(text: string): Address {
  const [, path] = /^unix:(.+)$/.exec(text) ?? [];
  if (path) return { text, origin: "http://localhost", path, host: "localhost", port: 0, encrypted: false };
  const [, scheme = "http", host = "", port = ""] = /^(?:(https?):\/\/)?([^/:]+|\[[^\]]+\]):(\d{1,5})\/?$/.exec(text) ?? [];
  if (!host || Number(port) > 65_535) throw invalid(`address: host:port, https://host:port or unix:/path, not "${text}"`);
  const origin = `${scheme}://${host}:${port}`;
  return { text, origin, host: host.replace(/^\[|\]$/g, ""), port: Number(port), encrypted: scheme === "https" };
}

/** Throws if a time is no number of milliseconds from `least` on. */
export function checkMs(name: string, ms: number | undefined, least: number): void {
  if (ms !== undefined && !(ms >= least)) throw invalid(`${name}: a number of milliseconds from ${least} on, not ${ms}`);
}

const invalid = (message: string) => new InvalidArgument("INVALID_FIELD", message);
