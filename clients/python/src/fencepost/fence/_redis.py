"""A key with the highest token of each lock, in the Redis of the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ._errors import Held, StaleToken, name_and_token

# Redis runs a script as one step. The first argument is the token; then come the commands, each behind its length. The key
# of a command, its second word, is taken from KEYS, because clients that put a prefix before keys do so there alone.
_SCRIPT = """local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
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
return answers"""


class Redis(Protocol):
    """A client of redis-py, or one with its `eval`."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> Any: ...


class RedisFence:
    """Commands of a lock's holders, which a newer holder's token refuses.

    `prefix` stands before the lock's name in the key of its token. In a cluster, that key and those of the commands must
    share a slot: put the same `{tag}` into the lock's name and into the keys. The key of the token must neither expire nor
    be deleted or evicted.
    """

    def __init__(self, redis: Redis, prefix: str = "fencepost:fence:") -> None:
        self._redis, self._prefix = redis, prefix

    def raise_token(self, lock: Held | tuple[str, int]) -> None:
        """Raises the token, before the first read. Raises StaleToken."""
        self.run(lock)

    def run(self, lock: Held | tuple[str, int], *commands: Sequence[Any]) -> list[Any]:
        """Compares, raises and runs the commands in one step: `run(lock, ["SET", "total", 8])`. Returns their answers.

        The second word of a command is its key. Raises StaleToken, and then no command has run. Redis does not take back the
        commands before one that fails.
        """
        name, token = name_and_token(lock)
        words = [word for command in commands for word in (len(command), *command)]
        keys = [command[1] for command in commands if len(command) > 1]
        answers = self._redis.eval(_SCRIPT, 1 + len(keys), self._prefix + name, *keys, token, *words)
        if not answers[0]:
            raise StaleToken(name, token)
        return list(answers[1:])
