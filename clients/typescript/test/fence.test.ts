import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { before, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
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

    it("a transaction that its work ends is no success", async () => {
      const ending = fence.transaction(dialect, first, token(33), async () => {
        await dialect.run(first, "ROLLBACK", []);
        // In MariaDB, which rolls back after a deadlock, what follows is not committed either.
        if (name === "MariaDB") await set(first, 100);
      });
      await assert.rejects(ending, /has failed or ended before its commit/);
      assert.equal(await total(second), 5);
      await fence.transaction(dialect, first, token(1), add);
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
      app.put(
        "/begun",
        fence.expressHandler(async (_, response: express.Response, given) => {
          response.setHeader("Content-Length", 1000);
          await put(given);
        }),
      );
      for (const [given, status] of REQUESTS) {
        const request = new Request(`http://127.0.0.1:${port}`, {
          method: "PUT",
          headers: given === undefined ? {} : { [fence.HEADER]: given },
        });
        assert.deepEqual([(await handler(request)).status, (await fetch(request)).status], [status, status], given);
      }
      const late = { method: "PUT", headers: { [fence.HEADER]: "33" } };
      assert.match(await (await fetch(`http://127.0.0.1:${port}/begun`, late)).text(), /a newer holder/);
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
  ...["34, 34", "35, 34", "", "0", "-1", "3 4", "+3", "1_0", "3e1", "\u00b2", "9007199254740992", "00000000000000034", "x"].map(
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
    await assert.rejects(swallowing, /has failed or ended before its commit/);
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

  it("after a deadlock that the work hides nothing is committed", { skip: databases.missing("mariadbd") }, async () => {
    const open = await databases.mariadb();
    const [connection, heavier] = [await open(), await open()];
    for (const statement of [
      fence.MYSQL.create,
      "CREATE TABLE account (total integer)",
      "INSERT INTO account VALUES (5)",
      "START TRANSACTION",
      // MariaDB rolls the lighter of two transactions back.
      "INSERT INTO account SELECT 5 FROM seq_1_to_100",
      "UPDATE account SET total = 5",
    ]) {
      await heavier.query(statement);
    }
    let other: Promise<unknown> | undefined;
    const set = (total: number) => connection.query(`UPDATE account SET total = ${total}`);
    const deadlocked = fence.transaction(fence.MYSQL, connection, token(33), async () => {
      other = heavier.query(fence.MYSQL.highest ?? "", [Buffer.from("a")]).then(() => heavier.query("ROLLBACK"));
      await assert.rejects(set(6), { code: "ER_LOCK_DEADLOCK" });
      await set(100);
    });
    await assert.rejects(deadlocked, /has failed or ended before its commit/);
    await other;
    const [rows] = await heavier.query("SELECT total, @@autocommit AS autocommit FROM account");
    assert.deepEqual(rows, [{ total: 5, autocommit: 1 }]);
    const [[session]] = (await connection.query("SELECT @@autocommit AS autocommit")) as unknown as [[unknown]];
    assert.deepEqual(session, { autocommit: 1 });
  });

  it("a name is one row, whatever the character set of the connection", { skip: databases.missing("mariadbd") }, async () => {
    const connection = await (await databases.mariadb())();
    await connection.query(fence.MYSQL.create);
    await fence.transaction(fence.MYSQL, connection, token(34, "\u00e9"), () => undefined);
    await connection.changeUser({ charset: "LATIN1_SWEDISH_CI" });
    await assert.rejects(
      fence.transaction(fence.MYSQL, connection, token(33, "\u00e9"), () => undefined),
      STALE,
    );
  });

  it("a connection that cannot roll back is not used again", async () => {
    const database = new Database(":memory:");
    database.exec(fence.SQLITE.create);
    const broken: typeof fence.SQLITE = {
      ...fence.SQLITE,
      run: async (connection, statement, values) => {
        if (statement === "ROLLBACK") throw new Error("it is late");
        return fence.SQLITE.run(connection, statement, values);
      },
    };
    const failing = () => fence.transaction(broken, database, token(33), () => Promise.reject(new Error("failure")));
    await assert.rejects(failing(), /failure/);
    await assert.rejects(failing(), /has a transaction already/);
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

  it("commands of Redis use the keys as the client sends them", { skip: databases.missing("redis-server") }, async () => {
    const redis = (await databases.redis()).duplicate({ keyPrefix: "app:" });
    atEnd(() => redis.disconnect());
    const guard = new fence.RedisFence((script, keys, args) => redis.eval(script, keys.length, ...keys, ...args));
    assert.deepEqual(await guard.run(token(33), ["INCR", "total"], ["PING"], ["INCRBY", "total", 2]), [1, "PONG", 3]);
    assert.deepEqual((await redis.keys("*")).sort(), ["app:fencepost:fence:a", "app:total"]);
    assert.equal(await redis.get("total"), "3");
  });

  it("a file stays locked when signals reach the program flock", async () => {
    const folder = await mkdtemp(join(tmpdir(), "fence-"));
    const path = join(folder, "report");
    const order: string[] = [];
    let newer: Promise<void> | undefined;
    // As of Ctrl-C, to all processes of a group.
    const signal = async (name: string) => {
      const script = `for flock in $(pgrep -f "^flock $1"); do pkill -${name} -P "$flock"; kill -${name} "$flock"; done`;
      await promisify(execFile)("sh", ["-c", `${script}; true`, "sh", `${path}.lock`]);
    };
    await fence.file(path, token(33), async () => {
      for (const name of ["INT", "TERM", "HUP", "QUIT"]) await signal(name);
      newer = fence.file(path, token(34), async () => {
        order.push("newer");
      });
      await sleep(300);
      order.push("older");
    });
    await newer;
    assert.deepEqual(order, ["older", "newer"]);
    // What cannot be ignored is told.
    const killed = fence.file(path, token(34), () => signal("KILL"));
    await assert.rejects(killed, /may have run beside/);
    await rm(folder, { recursive: true });
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
    // Not the token that was given is wrong.
    await writeFile(`${path}.token`, "x\n");
    await assert.rejects(
      fence.file(path, token(35), () => 7),
      (error: Error) => error.name === "Error" && error.message.includes("report.token has no token"),
    );
    await rm(folder, { recursive: true });
  });
});
