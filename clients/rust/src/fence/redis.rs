//! A key with the highest token of each lock, in the Redis of the work.

use super::FencingToken;

/// Redis runs a script as one step. The first argument is the token; then come the commands, each behind its length. The key of a
/// command, its second word, is taken from KEYS, because clients that put a prefix before keys do so there alone.
const SCRIPT: &str = "local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
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
return answers";

/// A call of Redis that compares, raises and runs commands in one step. Without commands it is the raise before the first read.
///
/// Its answer is a list. Give the first item to [`FencingToken::raised`]; with 0 no command has run. The others are the answers of
/// the commands. Redis does not take back the commands before one that fails.
///
/// In a cluster, the key of the token and those of the commands must share a slot: put the same `{tag}` into the lock's name and
/// into the keys. The key of the token must neither expire nor be deleted or evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisCall {
    /// What `EVAL` runs.
    pub script: &'static str,
    /// The keys: that of the token, `fencepost:fence:` and the lock's name, and the second word of each command.
    pub keys: Vec<Vec<u8>>,
    /// The arguments.
    pub arguments: Vec<Vec<u8>>,
}

impl RedisCall {
    /// A call of a holder. The second word of a command is its key.
    pub fn new(token: &FencingToken, commands: &[&[&[u8]]]) -> Self {
        let mut keys = vec![format!("fencepost:fence:{}", token.lock).into_bytes()];
        let mut arguments = vec![token.number.to_string().into_bytes()];
        for command in commands {
            keys.extend(command.get(1).map(|key| key.to_vec()));
            arguments.push(command.len().to_string().into_bytes());
            arguments.extend(command.iter().map(|word| word.to_vec()));
        }
        let script = SCRIPT;
        Self {
            script,
            keys,
            arguments,
        }
    }
}
