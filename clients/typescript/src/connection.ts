import { readFileSync } from "node:fs";
import net from "node:net";
import tls from "node:tls";
import { type CallOptions, type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { type FencepostError, typed, Unavailable } from "./errors.js";
import { AdminService } from "./gen/fencepost/v1/admin_pb.js";
import { ElectionService } from "./gen/fencepost/v1/election_pb.js";
import { LockService } from "./gen/fencepost/v1/lock_pb.js";
import type { Address, Settings } from "./options.js";

/** How long a server is asked whether it speaks TLS. */
const ASK_MS = 1_000;

/** The HTTP/2 connection of one stream. It does not keep the process alive. */
export class Connection {
  readonly locks: Client<typeof LockService>;
  readonly elections: Client<typeof ElectionService>;
  readonly admin: Client<typeof AdminService>;
  #socket: net.Socket | undefined;
  #isConnected = false;
  #problem: NodeJS.ErrnoException | undefined;

  constructor(
    readonly address: Address,
    readonly settings: Settings,
    readonly token: string,
  ) {
    const { origin } = address;
    const sessionManager = new Http2SessionManager(origin, undefined, { createConnection: () => this.#connect() });
    const transport = createGrpcTransport({ baseUrl: origin, sessionManager });
    this.locks = createClient(LockService, transport);
    this.elections = createClient(ElectionService, transport);
    this.admin = createClient(AdminService, transport);
  }

  /** The options of a call. */
  options(timeoutMs?: number): CallOptions {
    return { timeoutMs, headers: this.token ? { authorization: `Bearer ${this.token}` } : {} };
  }

  close(): void {
    // By the socket: Http2SessionManager.abort leaves the error of a connection that fails right now without a listener.
    this.#socket?.destroy(new Error("the connection is closed"));
  }

  /** Opens the socket. The certificates are read again each time. */
  #connect(): net.Socket {
    if (this.#socket) throw new ConnectError("the connection has ended", Code.Unavailable);
    const { host, port, path, encrypted } = this.address;
    const { caFile, certFile, keyFile } = this.settings;
    const pem = (file: string | undefined) => file && readFileSync(file);
    const credentials = () => ({
      ca: pem(caFile),
      cert: pem(certFile),
      key: pem(keyFile),
      servername: net.isIP(host) ? "" : host,
    });
    const socket = encrypted
      ? tls.connect({ host, port, ALPNProtocols: ["h2"], ...credentials() })
      : net.connect(path === undefined ? { host, port } : { path });
    socket.setNoDelay();
    socket.once("connect", () => (this.#isConnected = true));
    // The stream fails with it; a late one has no other listener.
    socket.on("error", (error) => (this.#problem ??= error));
    // What is held and waited for keeps the process alive, and the HTTP/2 session would do so for the stream.
    socket.unref();
    socket.ref = () => socket;
    this.#socket = socket;
    return socket;
  }

  /** What the stream failed with. What TLS refuses is final, and says which side speaks what. */
  async failed(cause: unknown, wasOpen: boolean): Promise<FencepostError> {
    const error = typed(cause, this.address.text);
    const why = error.reason === "UNREACHABLE" && !wasOpen && (await this.#refusal());
    return why ? new Unavailable("TLS", `${why}: ${this.#problem?.message ?? error.message}`, { cause }) : error;
  }

  async #refusal(): Promise<string | undefined> {
    const { text, encrypted, path } = this.address;
    const code = this.#problem?.code ?? "";
    if (!encrypted) {
      const speaksTls = this.#isConnected && path === undefined && (await this.#speaksTls());
      return speaksTls ? `${text} speaks TLS, and its address does not begin with https://` : undefined;
    }
    if (code.startsWith("ERR_SSL_") && code.includes("ALERT")) return `${text} refuses the certificate of the client`;
    if (code.startsWith("ERR_SSL_")) return `${text} speaks no TLS, and its address begins with https://`;
    if ((this.#socket as tls.TLSSocket | undefined)?.authorizationError) return `the certificate of ${text} is refused`;
    return undefined;
  }

  /** It is asked what it speaks, and sent nothing. */
  #speaksTls(): Promise<boolean> {
    const { host, port } = this.address;
    return new Promise((resolve) => {
      const socket = tls.connect({ host, port, rejectUnauthorized: false });
      const answer = (speaks: boolean) => {
        clearTimeout(timer);
        socket.destroy();
        resolve(speaks);
      };
      const timer = setTimeout(answer, ASK_MS, false);
      socket.once("secureConnect", () => answer(true)).on("error", () => answer(false));
    });
  }
}
