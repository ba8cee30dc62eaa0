import { compare, type HeldLock, type NamedToken, named, StaleToken } from "./token.js";

/** What a statement did. */
export interface StatementResult {
  /** How many rows it changed. */
  readonly changed: number;
  /** The token of its first row. */
  readonly token?: number;
}

/** The statements of one kind of database, and how its driver runs one; for another driver, replace `run`. */
export interface Dialect<Connection> {
  /** Makes the table, in the database of the work. */
  readonly create: string;
  /** Prepares the connection for a transaction, if needed. */
  readonly before?: string;
  /** Begins a transaction. */
  readonly begin: string;
  /** Undoes `before` when the transaction has ended. */
  readonly after?: string;
  /** The first statement of each transaction. Its values are the lock's name and the token. */
  readonly raiseToken: string;
  /** Selects the highest token of a name, where the number of rows that `raiseToken` changed does not tell. */
  readonly highest?: string;
  /** Runs one statement. */
  run(connection: Connection, statement: string, values: readonly (string | number)[]): Promise<StatementResult>;
}

/** A `Client` or `PoolClient` of pg. */
export interface PostgresqlConnection {
  query(statement: string, values: unknown[]): Promise<{ rowCount: number | null }>;
  getTransactionStatus?(): string | null;
}

/** A connection of mysql2/promise. */
export interface MysqlConnection {
  query(statement: string, values: unknown[]): Promise<[unknown, unknown]>;
}

/** A database of better-sqlite3, libsql or node:sqlite. */
export interface SqliteConnection {
  readonly inTransaction?: boolean;
  readonly isTransaction?: boolean;
  exec(statement: string): unknown;
  prepare(statement: string): { run(...values: (string | number)[]): { changes: number | bigint } };
}

const UPDATE = "ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fencing_tokens.token <= excluded.token";

export const POSTGRESQL: Dialect<PostgresqlConnection> = {
  create: "CREATE TABLE IF NOT EXISTS fencing_tokens (name text PRIMARY KEY, token bigint NOT NULL)",
  begin: "BEGIN",
  raiseToken: `INSERT INTO fencing_tokens (name, token) VALUES ($1, $2)\n${UPDATE}`,
  async run(connection, statement, values) {
    refusePool(connection);
    if (statement === "BEGIN" && /[TE]/.test(connection.getTransactionStatus?.() ?? "")) {
      throw new Error("the connection has a transaction already: what it has read was read before the raise");
    }
    return { changed: (await connection.query(statement, [...values])).rowCount ?? 0 };
  },
};

/**
 * Set a busy timeout, which bounds the wait for another transaction, but not between connections of one process: the calls block it,
 * also the transaction that they wait for.
 */
export const SQLITE: Dialect<SqliteConnection> = {
  create: "CREATE TABLE IF NOT EXISTS fencing_tokens (name TEXT PRIMARY KEY, token INTEGER NOT NULL)",
  // Nobody writes between the raise and the work.
  begin: "BEGIN IMMEDIATE",
  raiseToken: `INSERT INTO fencing_tokens (name, token) VALUES (?, ?)\n${UPDATE}`,
  async run(connection, statement, values) {
    const hasTransaction = connection.inTransaction ?? connection.isTransaction;
    // After some errors, SQLite has rolled back.
    if (statement === "ROLLBACK" && hasTransaction === false) return { changed: 0 };
    if (values.length > 0) return { changed: Number(connection.prepare(statement).run(...values).changes) };
    // In libsql, a prepared BEGIN that was refused stays in progress, and no later COMMIT succeeds.
    connection.exec(statement);
    return { changed: 0 };
  },
};

/**
 * Also for MariaDB. Names are compared byte for byte. The number of changed rows is the same for an equal and for a lower token, so
 * the row is read behind, with its lock.
 */
export const MYSQL: Dialect<MysqlConnection> = {
  create: `CREATE TABLE IF NOT EXISTS fencing_tokens (
    name varbinary(600) PRIMARY KEY, token bigint NOT NULL
) ENGINE = InnoDB`,
  // What follows a deadlock, which rolls back the raise too, must not be committed statement by statement.
  before: "SET @fencepost_autocommit = @@autocommit, autocommit = 0",
  begin: "START TRANSACTION",
  after: "SET autocommit = @fencepost_autocommit",
  raiseToken: `INSERT INTO fencing_tokens (name, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))`,
  highest: "SELECT token FROM fencing_tokens WHERE name = ? FOR UPDATE",
  async run(connection, statement, values) {
    refusePool(connection);
    // The character set of the connection would change the text of a name.
    const bytes = values.map((value) => (typeof value === "string" ? Buffer.from(value) : value));
    const [result] = await connection.query(statement, bytes);
    return Array.isArray(result) ? { changed: 0, token: Number(result[0]?.token) } : { changed: 0 };
  },
};

/** A pool may give each statement another connection. */
function refusePool(connection: object): void {
  if ("totalCount" in connection || "getConnection" in connection) {
    throw new TypeError("a transaction needs one connection: take it from the pool");
  }
}

/**
 * Raises the token of a lock in the row of its name. It must be the first statement of its transaction. The transaction then has
 * the row to itself until it ends, so those of one lock run one after the other.
 *
 * Roll the transaction back after an error of a later statement, because after a deadlock MySQL has rolled back the raise too.
 *
 * @throws StaleToken if a newer holder has raised the row: roll the transaction back.
 */
export async function raiseToken<Connection>(
  dialect: Dialect<Connection>,
  connection: Connection,
  lock: HeldLock | NamedToken,
): Promise<void> {
  const { name, token } = named(lock);
  const { changed } = await dialect.run(connection, dialect.raiseToken, [name, token]);
  if (dialect.highest) {
    const { token: highest } = await dialect.run(connection, dialect.highest, [name]);
    compare({ name, token }, highest ?? Number.POSITIVE_INFINITY);
  } else if (changed === 0) {
    throw new StaleToken(name, token);
  }
}

/** Those with a transaction of this module: the statements of two would run in one. */
const connectionsInUse = new WeakSet<object>();

/**
 * Raises the token of a lock, calls `work`, and commits both. Rolls back if `work` rejects or throws, whose error is passed on.
 *
 * The connection must have no transaction yet, because what was read in it was read before the raise, and nothing else may use it
 * meanwhile: a service takes one for each request. Let errors of statements end the work: if the database has rolled back the raise,
 * as MySQL does after a deadlock, the rest of the work is rolled back too. Commits and rollbacks are not the work's.
 *
 * @throws StaleToken if a newer holder has raised the row.
 */
export async function transaction<Connection extends object, Result>(
  dialect: Dialect<Connection>,
  connection: Connection,
  lock: HeldLock | NamedToken,
  work: (connection: Connection) => Promise<Result> | Result,
): Promise<Result> {
  const run = async (statement = "") => {
    if (statement) await dialect.run(connection, statement, []);
  };
  const end = async (statement: string) => {
    await run(statement);
    await run(dialect.after);
    connectionsInUse.delete(connection);
  };
  if (connectionsInUse.has(connection)) throw new Error("the connection has a transaction already: take one for each request");
  connectionsInUse.add(connection);
  try {
    await run(dialect.before);
    await run(dialect.begin);
  } catch (error) {
    connectionsInUse.delete(connection);
    throw error;
  }
  try {
    await raiseToken(dialect, connection, lock);
    await run("SAVEPOINT fencepost");
    const result = await work(connection);
    await requireTheRaise(run);
    await end("COMMIT");
    return result;
  } catch (error) {
    // A connection that cannot roll back may have its transaction still, so it stays in use.
    await end("ROLLBACK").catch(() => undefined);
    throw error;
  }
}

/** A savepoint lasts as long as the transaction, which a deadlock or the work may have ended. */
async function requireTheRaise(run: (statement: string) => Promise<void>): Promise<void> {
  try {
    await run("RELEASE SAVEPOINT fencepost");
  } catch (cause) {
    throw new Error("the transaction of the raise has failed or ended before its commit: it was rolled back", { cause });
  }
}
