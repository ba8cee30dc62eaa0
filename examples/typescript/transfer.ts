// Transfers between accounts, each under the locks of both: transfer [DATABASE] [TRANSFERS].
import Database from "libsql";
import { Client } from "fencepost-client";

const TABLE = "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL)";
const ACCOUNTS = "INSERT OR IGNORE INTO accounts VALUES ('alice', 100, 0), ('bob', 100, 0), ('carol', 100, 0)";
const PAIRS = [["alice", "bob"], ["alice", "carol"], ["bob", "carol"]] as const;

const [path = "accounts.db", transfers = "20"] = process.argv.slice(2);
const database = new Database(path);
database.exec("PRAGMA busy_timeout = 10000");
database.exec(TABLE);
database.exec(ACCOUNTS);
const add = database.prepare("UPDATE accounts SET balance = balance + ?, token = ? WHERE name = ? AND token <= ?");

/** Changes both balances or neither; each row compares the token of its own lock. */
const move = database.transaction((changes: [name: string, amount: number, token: number][]) => {
  for (const [name, amount, token] of changes) {
    const { changes } = add.run(amount, token, name, token);
    if (changes === 0) throw new Error(`refused: a newer token than ${token} has written ${name}`);
  }
});

await using client = new Client();

async function transfer() {
  const [first, second] = PAIRS[Math.floor(Math.random() * PAIRS.length)]!;
  const amount = Math.random() < 0.5 ? 10 : -10;
  // Both locks or none, so that nobody waits in a circle.
  await client.usingAll([`account/${first}`, `account/${second}`], { ttlMs: 8_000, waitMs: 60_000 }, (locks) => {
    const [one, two] = locks.check();
    move([[first, amount, one!], [second, -amount, two!]]);
  });
  console.log(`${amount} to ${first}, ${-amount} to ${second}`);
}

let left = Number(transfers);
await Promise.all([1, 2, 3, 4].map(async () => {
  while (left-- > 0) await transfer();
}));
const { total } = database.prepare("SELECT sum(balance) AS total FROM accounts").get() as { total: number };
console.log(`the total is ${total}`);
