import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { before, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import express from "express";
import { LeaseLost } from "fencepost-client";
import * as fence from "fencepost-client/fence";
import Database from "libsql";
import pg from "pg";
import * as databases from "./databases.js";
import { atEnd, connect, serve } from "./support.js";

/** A database with an account, of which each connection runs a statement in the transactions of a dialect. */
interface Kind<Connection> {
  name: string;
  skip: string | false;
  dialect: fence.Dialect<Connection>;
  start(): Promise<() => Promise<Connection>>;
  rows(connection: Connection, statement: string): Promise<unknown[]>;
}

async function sqlite(): Promise<() => Promise<Database.Database>> {
  const folder = await mkdtemp(join(tmpdir(), "fence-"));
  atEnd(() => rm(folder, { recursive: true }));
  return async () => {
    const database = new Database(join(folder, "work.db"));
    // Its calls block this process, also its other transactions: it does not wait, and is asked again.
    database.exec("PRAGMA busy_timeout = 0");
    return database;
  };
}

const STALE = { name: "StaleToken", token: 33 };
const token = (token: number, name = "a") => ({ name, token });

function inADatabase<Connection extends object>({ name, skip, dialect, start, rows }: Kind<Connection>): void {
  describe(`fence in ${name}`, { skip }, () => {
    let open: () => Promise<Connection>;
    let first: Connection;
    let second: Connection;
    const total = async (connection: Connection) =>
      Number(((await rows(connection, "SELECT total FROM account")) as [{ total: unknown }])[0].total);
    const set = (connection: Connection, total: number) => dialect.run(connection, `UPDATE account SET total = ${total}`, []);
    const add = async (connection: Connection) => set(connection, (await total(connection)) + 1);

    before(async () => {
      open = await start();
      [first, second] = [await open(), await open()];
    });
    beforeEach(async () => {
      for (const table of ["account", "fencing_tokens"]) await dialect.run(first, `DROP TABLE IF EXISTS ${table}`, []);
      for (const statement of [
        dialect.create,
        "CREATE TABLE account (total integer NOT NULL)",
        "INSERT INTO account VALUES (5)",
      ]) {
        await dialect.run(first, statement, []);
      }
    });

    it("a paused holder that has read writes nothing after a newer one", async () => {
      const read = await fence.transaction(dialect, first, token(33), total);
      await fence.transaction(dialect, second, token(34), add);
      await assert.rejects(
        fence.transaction(dialect, first, token(33), () => set(first, read + 1)),
        STALE,
      );
      assert.equal(await total(first), 6);
      await fence.transaction(dialect, second, token(34), add);
      assert.equal(await total(first), 7);
    });

    it("transactions of one lock run one after the other", async () => {
      const order: string[] = [];
      let newer: Promise<unknown> | undefined;
      await fence.transaction(dialect, first, token(33), async () => {
        newer = until(() =>
          fence.transaction(dialect, second, token(34), async () => {
            order.push("newer");
            await set(second, (await total(second)) * 10);
          }),
        );
        await sleep(300);
        order.push("older");
        await set(first, 2);
      });
      await newer;
      assert.deepEqual([order, await total(first)], [["older", "newer"], 20]);
    });

    it("of two requests at once over one connection one is refused", async () => {
      const put = (given: number) => fence.transaction(dialect, first, token(given), add);
      const [newer, older] = await Promise.allSettled([put(34), put(33)]);
      assert.equal(newer.status, "fulfilled");
      assert.match(String((older as PromiseRejectedResult).reason), /has a transaction already: take one for each request/);
      assert.equal(await total(second), 6);
      await put(34);
    });

    it("work that fails takes the raise back", async () => {
      const failure = new Error("failure");
      const failing = fence.transaction(dialect, first, token(50), () => {
        throw failure;
      });
      await assert.rejects(failing, failure);
      await fence.transaction(dialect, first, token(49), () => undefined);
    });

    it("a lost lock raises nothing", async () => {
      const loss = new LeaseLost("expired", "lost");
      const lost = {
        name: "a",
        check: () => {
          throw loss;
        },
      };
      await assert.rejects(fence.transaction(dialect, first, lost, add), loss);
      assert.deepEqual([await total(first), await rows(first, "SELECT token FROM fencing_tokens")], [5, []]);
    });

    it("names are compared byte for byte", async () => {
      for (const [number, name] of ["a", "A", "a ", "a\u00e9", "x".repeat(512)].entries()) {
        await fence.transaction(dialect, first, token(100 - number, name), () => undefined);
      }
    });

    it("a service answers 412 to a lower token and 428 to none", async () => {
      const put = (given: number) => fence.transaction(dialect, first, token(given), add);
      const app = express();
      app.put(
        "/",
        fence.expressHandler(async (_, response: express.Response, given) => {
          await put(given);
          response.sendStatus(200);
        }),
      );
      const server = createServer(app).listen(0, "127.0.0.1");
      await once(server, "listening");
      const handler = fence.fetchHandler(async (_, given) => {
        await put(given);
        return new Response("done");
      });
      const { port } = server.address() as AddressInfo;
      for (const [given, status] of REQUESTS) {
        const request = new Request(`http://127.0.0.1:${port}`, {
          method: "PUT",
          headers: given === undefined ? {} : { [fence.HEADER]: given },
        });
        assert.deepEqual([(await handler(request)).status, (await fetch(request)).status], [status, status], given);
      }
      server.close();
      assert.equal(await total(first), 9);
    });
  });
}

const REQUESTS: [string | undefined, number][] = [
  [undefined, 428],
  ["34", 200],
  ["33", 412],
  ["34", 200],
  ...["", "0", "-1", "3 4", "+3", "1_0", "3e1", "\u00b2", "9007199254740992", "00000000000000034", "x"].map(
    (bad): [string, number] => [bad, 400],
  ),
];

/** Repeats what SQLite refuses because it would wait. */
async function until(attempt: () => Promise<unknown>): Promise<unknown> {
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if ((error as { code?: string }).code !== "SQLITE_BUSY") throw error;
      await sleep(20);
    }
  }
}

inADatabase({
  name: "SQLite",
  skip: false,
  dialect: fence.SQLITE,
  start: sqlite,
  rows: async (database, statement) => (database as Database.Database).prepare(statement).all(),
});
inADatabase({
  name: "PostgreSQL",
  skip: databases.missing("initdb"),
  dialect: fence.POSTGRESQL,
  start: databases.postgres,
  rows: async (client, statement) => (await (client as pg.Client).query(statement)).rows,
});
inADatabase({
  name: "MariaDB",
  skip: databases.missing("mariadbd"),
  dialect: fence.MYSQL,
  start: databases.mariadb,
  rows: async (connection, statement) => (await connection.query(statement, []))[0] as unknown[],
});

describe("fence", { concurrency: true }, () => {
  it("a transaction of PostgreSQL that has read, one in which a statement failed, and a pool are refused", {
    skip: databases.missing("initdb"),
  }, async () => {
    const open = await databases.postgres();
    const client = await open();
    await client.query(fence.POSTGRESQL.create);
    const swallowing = fence.transaction(fence.POSTGRESQL, client, token(33), () =>
      client.query("SELECT 1/0").catch(() => undefined),
    );
    await assert.rejects(swallowing, /a statement of the transaction had failed/);
    await client.query("BEGIN");
    await assert.rejects(
      fence.transaction(fence.POSTGRESQL, client, token(33), () => undefined),
      /has a transaction already/,
    );
    await client.query("ROLLBACK");
    await assert.rejects(
      fence.transaction(fence.POSTGRESQL, new pg.Pool(), token(33), () => undefined),
      /a transaction needs one connection/,
    );
  });

  it("what is no token is refused", async () => {
    const database = new Database(":memory:");
    for (const bad of [0, -1, 2 ** 53, 1.5, "33", true, undefined] as number[]) {
      await assert.rejects(fence.raiseToken(fence.SQLITE, database, token(bad)), { name: "InvalidToken" });
    }
  });

  it("the header has the token of a held lock, and a lost one has none", async () => {
    const client = connect((await serve()).address);
    const lock = await client.acquire("a");
    assert.deepEqual(fence.headers(lock), { "X-Fencing-Token": String(lock.token) });
    await lock.release();
    assert.throws(() => fence.headers(lock), LeaseLost);
  });

  it("Redis refuses a paused holder and runs none of its commands", { skip: databases.missing("redis-server") }, async () => {
    const redis = await databases.redis();
    const guard = new fence.RedisFence((script, keys, args) => redis.eval(script, keys.length, ...keys, ...args));
    await guard.raiseToken(token(33));
    assert.deepEqual(await guard.run(token(34), ["SET", "total", 1], ["INCRBY", "total", 2]), ["OK", 3]);
    await assert.rejects(guard.run(token(33), ["SET", "total", 0]), STALE);
    assert.equal(await redis.get("total"), "3");
    await guard.raiseToken(token(2 ** 53 - 1));
    await assert.rejects(guard.raiseToken(token(2 ** 53 - 2)), { name: "StaleToken" });
  });

  it("a file refuses a paused holder and lets one in at a time", async () => {
    const folder = await mkdtemp(join(tmpdir(), "fence-"));
    const path = join(folder, "report");
    const order: string[] = [];
    let newer: Promise<void> | undefined;
    await fence.file(path, token(33), async () => {
      newer = fence.file(path, token(34), async (path) => {
        order.push("newer");
        await writeFile(path, "6");
      });
      await sleep(300);
      order.push("older");
      await writeFile(path, "5");
    });
    await newer;
    assert.deepEqual(order, ["older", "newer"]);
    await assert.rejects(
      fence.file(path, token(33), (path) => writeFile(path, "late")),
      STALE,
    );
    assert.equal(await readFile(path, "utf8"), "6");
    // A shell script leaves the end of a line behind the token.
    await writeFile(`${path}.token`, "35\n");
    assert.equal(await fence.file(path, token(35), () => 7), 7);
    await rm(folder, { recursive: true });
  });
});
