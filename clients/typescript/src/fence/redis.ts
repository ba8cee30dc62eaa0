import { type HeldLock, type NamedToken, named, StaleToken } from "./token.js";

/** Runs a script: `(script, keys, args) => redis.eval(script, keys.length, ...keys, ...args)` with ioredis. */
export type Evaluate = (script: string, keys: string[], args: string[]) => Promise<unknown>;

// Redis runs a script as one step. The first argument is the token; then come the commands, each behind its length. The key of a
// command, its second word, is taken from KEYS, because clients that put a prefix before keys do so there alone.
const SCRIPT = `local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < highest then return {0} end
redis.call('SET', KEYS[1], ARGV[1])
local answers, at, key = {1}, 2, 1
while at <= #ARGV do
    local last = at + tonumber(ARGV[at])
    local command = {unpack(ARGV, at + 1, last)}
    if command[2] then key, command[2] = key + 1, KEYS[key + 1] end
    answers[#answers + 1] = redis.call(unpack(command))
    at = last + 1
end
return answers`;

/**
 * Commands of a lock's holders, which a newer holder's token refuses.
 *
 * In a cluster, the key of the token and those of the commands must share a slot: put the same `{tag}` into the lock's name and into
 * the keys. The key of the token must neither expire nor be deleted or evicted.
 */
export class RedisFence {
  readonly #evaluate: Evaluate;
  readonly #prefix: string;

  /** `prefix` stands before the lock's name in the key of its token. */
  constructor(evaluate: Evaluate, prefix = "fencepost:fence:") {
    this.#evaluate = evaluate;
    this.#prefix = prefix;
  }

  /** Raises the token, before the first read. Rejects with {@link StaleToken}. */
  async raiseToken(lock: HeldLock | NamedToken): Promise<void> {
    await this.run(lock);
  }

  /**
   * Compares, raises and runs the commands in one step: `run(lock, ["SET", "total", 8])`. Resolves with their answers. The
   * second word of a command is its key. Rejects with {@link StaleToken}, and then no command has run. Redis does not take back the
   * commands before one that fails.
   */
  async run(lock: HeldLock | NamedToken, ...commands: readonly (string | number)[][]): Promise<unknown[]> {
    const { name, token } = named(lock);
    const words = commands.flatMap((command) => [command.length, ...command]);
    const keys = commands.filter((command) => command.length > 1).map((command) => String(command[1]));
    const answer = await this.#evaluate(SCRIPT, [this.#prefix + name, ...keys], [token, ...words].map(String));
    const [is, ...answers] = answer as unknown[];
    if (Number(is) !== 1) throw new StaleToken(name, token);
    return answers;
  }
}
