// Real servers of databases, each on a free port in a folder of its own, for the tests of fence.
import { execFile, execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync, readdirSync } from "node:fs";
import { chown, mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { buffer } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { S3Client } from "@aws-sdk/client-s3";
import { Redis } from "ioredis";
import mysql from "mysql2/promise";
import pg from "pg";
import { atEnd } from "./support.js";

const versions = existsSync("/usr/lib/postgresql") ? readdirSync("/usr/lib/postgresql") : [];
const folders = [...(process.env.PATH ?? "").split(delimiter), "/usr/sbin"];
const postgresql = [...versions.map((version) => `/usr/lib/postgresql/${version}/bin`), ...folders];

/** The path of a program. With CI=true one that is missing is a failure of the first test that runs it. */
function program(name: string, places = folders): string {
  return places.map((folder) => join(folder, name)).find(existsSync) ?? name;
}

/** Why the tests of a server are skipped, if its program is not here. */
export function missing(name: string): string | false {
  return process.env.CI !== "true" && !existsSync(program(name, postgresql)) && `${name} is missing`;
}

async function freePort(): Promise<number> {
  const listener = net.createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address() as net.AddressInfo;
  listener.close();
  await once(listener, "close");
  return port;
}

/** The ids of a user, because root must not run some servers. */
function idsOf(user: string | undefined): { uid?: number; gid?: number } {
  if (!user || process.getuid?.() !== 0) return {};
  const id = (flag: string) => Number(execFileSync("id", [flag, user], { encoding: "utf8" }));
  return { uid: id("-u"), gid: id("-g") };
}

/** Starts a server after a command that makes its data, and resolves with what connects to it when it answers. */
async function start<T>(
  user: string | undefined,
  make: (folder: string) => string[] | undefined,
  command: (folder: string, port: number) => string[],
  connect: (port: number) => Promise<T>,
): Promise<() => Promise<T>> {
  const [folder, port, ids] = [await mkdtemp(join(tmpdir(), "fence-")), await freePort(), idsOf(user)];
  atEnd(() => rm(folder, { recursive: true, force: true }));
  if (ids.uid && ids.gid) await chown(folder, ids.uid, ids.gid);
  const [maker, ...options] = make(folder) ?? [];
  if (maker) await promisify(execFile)(maker, options, { cwd: folder, ...ids });
  const [name = "", ...args] = command(folder, port);
  const server = spawn(name, args, { cwd: folder, stdio: "ignore", ...ids });
  process.once("exit", () => server.kill("SIGKILL"));
  const ended = once(server, "exit");
  atEnd(() => {
    server.kill("SIGKILL");
    return ended;
  });
  for (const end = performance.now() + 50_000; ; await sleep(50)) {
    try {
      await connect(port);
      return () => connect(port);
    } catch (error) {
      if (server.exitCode !== null || performance.now() > end) throw error;
    }
  }
}

export function postgres(): Promise<() => Promise<pg.Client>> {
  return start(
    "postgres",
    (folder) => [program("initdb", postgresql), "-D", `${folder}/data`, "-U", "postgres", "-A", "trust", "--no-sync"],
    (folder, port) => {
      const settings = [`port=${port}`, "listen_addresses=127.0.0.1", `unix_socket_directories=${folder}`, "fsync=off"];
      return [program("postgres", postgresql), "-D", `${folder}/data`, ...settings.flatMap((setting) => ["-c", setting])];
    },
    async (port) => {
      const client = new pg.Client({ host: "127.0.0.1", port, user: "postgres", database: "postgres" });
      // The server is killed before.
      client.on("error", () => undefined);
      await client.connect();
      atEnd(() => client.end());
      return client;
    },
  );
}

export function mariadb(): Promise<() => Promise<mysql.Connection>> {
  const data = (folder: string) => ["--no-defaults", `--datadir=${folder}/data`, `--tmpdir=${folder}`];
  return start(
    "mysql",
    (folder) => {
      return [program("mariadb-install-db"), ...data(folder), "--auth-root-authentication-method=normal", "--skip-test-db"];
    },
    (folder, port) => {
      return [program("mariadbd"), ...data(folder), `--port=${port}`, "--bind-address=127.0.0.1", `--socket=${folder}/s`];
    },
    async (port) => {
      const connection = await mysql.createConnection({ host: "127.0.0.1", port, user: "root", database: "mysql" });
      atEnd(() => connection.destroy());
      return connection;
    },
  );
}

export async function redis(): Promise<Redis> {
  const connect = await start(
    undefined,
    () => undefined,
    (_, port) => [program("redis-server"), "--port", String(port), "--bind", "127.0.0.1", "--save", ""],
    async (port) => {
      const client = new Redis({ host: "127.0.0.1", port, lazyConnect: true, retryStrategy: () => null });
      client.on("error", () => undefined);
      await client.connect();
      atEnd(() => client.disconnect());
      return client;
    },
  );
  return connect();
}

/** A store with the conditional writes of S3 and the bucket `reports`, whose ETag is that of the body alone. */
export async function s3(): Promise<S3Client> {
  const objects = new Map<string, Buffer>();
  const etag = (body: Buffer) => `"${createHash("md5").update(body).digest("hex")}"`;
  const server = createServer(async (request, response) => {
    const body = await buffer(request);
    const path = new URL(request.url ?? "", "http://localhost").pathname;
    const found = objects.get(path);
    const { "if-match": match, "if-none-match": none } = request.headers;
    const refuse = (status: number, code: string) => response.writeHead(status).end(`<Error><Code>${code}</Code></Error>`);
    if (!path.startsWith("/reports/")) refuse(404, "NoSuchBucket");
    else if (!found && (request.method === "GET" || match)) refuse(404, "NoSuchKey");
    else if (request.method === "GET") response.setHeader("ETag", etag(found as Buffer)).end(found);
    else if (found && (none === "*" || (match && match !== etag(found)))) refuse(412, "PreconditionFailed");
    else {
      objects.set(path, body);
      response.end();
    }
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  atEnd(() => server.close());
  const { port } = server.address() as net.AddressInfo;
  const client = new S3Client({
    endpoint: `http://127.0.0.1:${port}`,
    region: "us-east-1",
    forcePathStyle: true,
    requestChecksumCalculation: "WHEN_REQUIRED",
    credentials: { accessKeyId: "a", secretAccessKey: "b" },
  });
  atEnd(() => client.destroy());
  return client;
}
