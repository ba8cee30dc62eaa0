// The programs of docs/protect-a-resource.md: those of TypeScript are the lines of the functions below.
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { fileURLToPath } from "node:url";
import { GetObjectCommand, PutObjectCommand, type S3Client } from "@aws-sdk/client-s3";
import express from "express";
import type { Client, Lock } from "fencepost-client";
import * as fence from "fencepost-client/fence";
import type { Redis } from "ioredis";
import pg from "pg";
import * as databases from "./databases.js";
import { connect, serve } from "./support.js";

async function addOne(client: Client, connection: pg.PoolClient | pg.Client) {
  await client.using("accounts", { waitMs: 30_000 }, (lock) =>
    // Raises the token; commits with the function.
    fence.transaction(fence.POSTGRESQL, connection, lock, async () => {
      const { rows } = await connection.query("SELECT total FROM account");
      await connection.query("UPDATE account SET total = $1", [rows[0].total + 1]);
    }),
  );
}

function service(pool: pg.Pool) {
  const app = express();
  app.put(
    "/account",
    fence.expressHandler(async (_request, response, token) => {
      const connection = await pool.connect(); // One for each request.
      try {
        await fence.transaction(fence.POSTGRESQL, connection, { name: "accounts", token }, () =>
          connection.query("UPDATE account SET total = 0"),
        );
      } finally {
        connection.release();
      }
      response.end();
    }),
  );
  return app;
}

async function redisAddOne(redis: Redis, lock: Lock) {
  const guard = new fence.RedisFence((script, keys, args) => redis.eval(script, keys.length, ...keys, ...args));
  await guard.raiseToken(lock); // Before the first read.
  const total = Number(await redis.get("total"));
  await guard.run(lock, ["SET", "total", total + 1]);
}

function daily(s3: S3Client) {
  const address = { Bucket: "reports", Key: "daily" };
  function unless<T>(codes: string[], otherwise: T) {
    return (error: Error) => {
      if (codes.includes(error.name)) return otherwise;
      throw error; // Such as NoSuchBucket.
    };
  }
  const report = new fence.FencedObject({
    async get() {
      const object = await s3.send(new GetObjectCommand(address)).catch(unless(["NoSuchKey"], undefined));
      return object?.Body && { body: await object.Body.transformToByteArray(), etag: object.ETag ?? "" };
    },
    async put(body, etag) {
      const condition = etag ? { IfMatch: etag } : { IfNoneMatch: "*" };
      const put = s3.send(new PutObjectCommand({ ...address, Body: body, ...condition }));
      const codes = ["PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"]; // Another write came between.
      return put.then(() => true).catch(unless(codes, false));
    },
  });
  return report;
}

async function addLine(report: fence.FencedObject, lock: Lock) {
  const old = await report.read(lock); // Raises the token; undefined if there is no object.
  await report.write(lock, `${old ?? ""}another line\n`);
}

async function writeReport(lock: Lock) {
  await fence.file("report", lock, (path) => writeFile(path, "the report of today"));
}

it("the programs of the page are those of this file", async () => {
  const read = (path: string) => readFile(fileURLToPath(new URL(path, import.meta.url)), "utf8");
  const [own, page] = [await read("../test/page.test.ts"), await read("../../../docs/protect-a-resource.md")];
  const blocks = [...page.matchAll(/```ts\n(.*?)```/gs)].map(([, block = ""]) => block);
  assert.equal(blocks.length, 6);
  for (const block of blocks) assert.ok(own.includes(block.replace(/^(?=.)/gm, "  ")), `the page has other lines:\n${block}`);
  const words = (text: string) => text.split(/\s+/).join(" ");
  for (const { create, raiseToken, highest = "" } of [fence.POSTGRESQL, fence.SQLITE, fence.MYSQL]) {
    const table = create.replace("IF NOT EXISTS ", "").replace(/\(\s+/, "(").replace(/\s+\)/, ")");
    for (const statement of [
      table,
      raiseToken.replace(/\(\?, \?\)|\(\$1, \$2\)/, "(:name, :token)"),
      highest.replace("?", ":name"),
    ]) {
      assert.ok(words(page).includes(words(statement)), `the page has another statement: ${statement}`);
    }
  }
});

const skip = databases.missing("initdb") || databases.missing("redis-server");
it("the programs of the page work", { skip }, async (test) => {
  const [server, open, redis, s3] = [await serve(), await databases.postgres(), await databases.redis(), await databases.s3()];
  const [client, connection, report] = [connect(server.address), await open(), daily(s3)];
  const folder = await mkdtemp(join(tmpdir(), "fence-"));
  const before = process.cwd();
  process.chdir(folder);
  test.after(() => {
    process.chdir(before);
    return rm(folder, { recursive: true });
  });
  await connection.query(
    `${fence.POSTGRESQL.create}; CREATE TABLE account (total integer NOT NULL); INSERT INTO account VALUES (5)`,
  );
  const total = async () => (await connection.query("SELECT total FROM account")).rows[0].total;
  for (let time = 0; time < 2; time++) {
    await addOne(client, connection);
    await client.using("report", {}, async (lock) => {
      await redisAddOne(redis, lock);
      await addLine(report, lock);
      await writeReport(lock);
    });
  }
  const token = 2 ** 53 - 1;
  const data = await report.read({ name: "report", token });
  assert.deepEqual(
    [await total(), await redis.get("total"), data?.toString(), await readFile("report", "utf8")],
    [7, "2", "another line\nanother line\n", "the report of today"],
  );
  await connection.query("UPDATE fencing_tokens SET token = 33");
  const pool = new pg.Pool({ host: connection.host, port: connection.port, user: "postgres", database: "postgres" });
  const http = createServer(service(pool)).listen(0, "127.0.0.1");
  await once(http, "listening");
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}/account`;
  const put = async (given: string) => (await fetch(url, { method: "PUT", headers: { [fence.HEADER]: given } })).status;
  assert.equal(await put("32"), 412);
  assert.deepEqual(await Promise.all([put("34"), put("34")]), [200, 200]);
  http.close();
  await pool.end();
  assert.equal(await total(), 0);
});

it("an object refuses a paused holder, also with the bytes that were there", async () => {
  const s3 = await databases.s3();
  const [report, older, newer] = [daily(s3), { name: "a", token: 33 }, { name: "a", token: 34 }];
  const stale = { name: "StaleToken", token: 33 };
  assert.equal(await report.read(older), undefined);
  await report.write(older, "first\n\0");
  // One that is paused between its look and its write finds what the newer one has put there, though the data is the same.
  const pausing = {
    send: async (command: GetObjectCommand | PutObjectCommand) => {
      if (command instanceof PutObjectCommand) assert.equal((await report.read(newer))?.toString(), "first\n\0");
      return s3.send(command as PutObjectCommand);
    },
  };
  await assert.rejects(daily(pausing as unknown as S3Client).write(older, "late"), stale);
  await assert.rejects(report.read(older), stale);
  await report.write(newer, "");
  assert.equal((await report.read({ name: "a", token: 35 }))?.toString(), "");
  for (const Body of ["no token", "fencing-token: 0\n1\n", "fencing-token: 99999999999999999\n1\n"]) {
    await s3.send(new PutObjectCommand({ Bucket: "reports", Key: "daily", Body }));
    await assert.rejects(report.read(newer), { name: "Error", message: /does not begin with a token/ });
  }
});

it("a bucket that is missing, an object without ETag, and a store that always refuses are errors", async () => {
  const [s3, lock] = [await databases.s3(), { name: "a", token: 33 }];
  const elsewhere = {
    send: (command: GetObjectCommand | PutObjectCommand) => {
      command.input.Bucket = "missing";
      return s3.send(command as PutObjectCommand);
    },
  };
  const missing = daily(elsewhere as unknown as S3Client);
  await assert.rejects(missing.read(lock), { name: "NoSuchBucket" });
  await assert.rejects(missing.write(lock, "first"), { name: "NoSuchBucket" });
  const body = Buffer.from("fencing-token: 1\n1\n");
  const odd = (etag: string) => new fence.FencedObject({ get: async () => ({ body, etag }), put: async () => false });
  await assert.rejects(odd("").read(lock), /without an ETag/);
  await assert.rejects(odd("other").write(lock, "first"), /100 attempts/);
});
