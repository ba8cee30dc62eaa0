//! A key with the highest token of each lock, in the Redis of the work.

use super::FencingToken;

/// Redis runs a script as one step. The first argument is the token; then come the commands, each behind its length.
const SCRIPT: &str = "local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < highest then return {0} end
redis.call('SET', KEYS[1], ARGV[1])
local answers, at = {1}, 2
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
return answers";

/// A call of Redis that compares, raises and runs commands in one step. Without commands it is the raise before the first read.
///
/// Its answer is a list. Give the first item to [`FencingToken::raised`]; with 0 no command has run. The others are the answers of
/// the commands. Redis does not take back the commands before one that fails.
///
/// In a cluster, the key of the token and those of the commands must share a slot: put the same `{tag}` into the lock's name and
/// into the keys. The key of the token must neither expire nor be evicted.
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
