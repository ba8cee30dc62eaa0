/**
 * The resource's half of fencing: a resource that refuses a holder whose lock has a newer holder.
 *
 * No lease stops a holder that is paused and writes too late. The resource keeps the highest token of each lock, and each holder
 * raises it *before the first read* of its work, in the step that also commits the work:
 *
 * ```ts
 * await client.using("reports", { waitMs: 30_000 }, (lock) =>
 *   fence.transaction(fence.POSTGRESQL, connection, lock, async () => {
 *     await connection.query("SELECT total FROM reports");
 *     ...
 *   }),
 * );
 * ```
 *
 * A holder that was paused after its read, and whose lock another one took meanwhile, finds a higher token and gets
 * {@link StaleToken}. To compare only in the condition of the write is not enough: the paused holder may write before the newer one
 * does, which then overwrites it with what it computed from the older state.
 *
 * This is for exclusive locks. Holders of a shared lock or of a semaphore hold at the same time, so the one with the highest token
 * would refuse the others.
 *
 * @packageDocumentation
 */
export { file } from "./file.js";
export { expressHandler, fetchHandler, HEADER, headers } from "./http.js";
export { FencedObject, type ObjectStore } from "./object.js";
export { type Evaluate, RedisFence } from "./redis.js";
export {
  type Dialect,
  MYSQL,
  type MysqlConnection,
  POSTGRESQL,
  type PostgresqlConnection,
  raiseToken,
  SQLITE,
  type SqliteConnection,
  type StatementResult,
  transaction,
} from "./sql.js";
export { type HeldLock, InvalidToken, type NamedToken, StaleToken } from "./token.js";
