// Transfers between accounts, each under the locks of both: transfer [DATABASE] [TRANSFERS].
import Database from "libsql";
import { type Lock, Locks, seconds } from "./locks.js";

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
const move = database.transaction((changes: [name: string, amount: number, lock: Lock][]) => {
  for (const [name, amount, lock] of changes) {
    const { changes } = add.run(amount, lock.token, name, lock.token);
    if (changes === 0) throw new Error(`refused: a newer token than ${lock.token} has written ${name}`);
  }
});

const locks = new Locks(process.env.FENCEPOST_ADDR ?? "127.0.0.1:50051", `transfer-${process.pid}`);
const account = <T>(name: string, work: (lock: Lock) => Promise<T>) => 
  locks.hold({ name: `account/${name}`, ttl: seconds(8) }, work, 60_000);

async function transfer() {
  // Everybody takes the two locks in the order of their names, so that nobody waits in a circle.
  const [first, second] = PAIRS[Math.floor(Math.random() * PAIRS.length)];
  const amount = Math.random() < 0.5 ? 10 : -10;
  await account(first, (one) => account(second, async (two) => {
    one.check();
    two.check();
    move([[first, amount, one], [second, -amount, two]]);
  }));
  console.log(`${amount} to ${first}, ${-amount} to ${second}`);
}

let left = Number(transfers);
await Promise.all([1, 2, 3, 4].map(async () => {
  while (left-- > 0) await transfer();
}));
const { total } = database.prepare("SELECT sum(balance) AS total FROM accounts").get() as { total: number };
console.log(`the total is ${total}`);
locks.close();
