package fence

import (
	"context"
	"fmt"
	"math"
)

// script runs as one step. The first argument is the token; then come the commands, each behind its length. The key of a
// command, its second word, is taken from KEYS, because clients that put a prefix before keys do so there alone.
const script = `local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
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
return answers`

// Command is one command of Redis: its name, its key and the rest.
type Command []any

// Redis keeps a key with the highest token of each lock, in the Redis of the work.
//
// In a cluster, that key and those of the commands must share a slot: put the same {tag} into the lock's name and into the
// keys. The key of the token must neither expire nor be deleted or evicted.
type Redis struct {
	// Eval runs a script, as Eval(...).Result() of go-redis does.
	Eval func(ctx context.Context, script string, keys []string, args ...any) (any, error)
	// Prefix stands before the lock's name in the key of its token. Default: "fencepost:fence:".
	Prefix string
}

// Raise raises the token of a lock, before the first read. Returns [ErrStaleToken].
func (r Redis) Raise(ctx context.Context, lock Holder) error {
	_, err := r.Run(ctx, lock)
	return err
}

// Run compares, raises and runs the commands in one step, and returns their answers. After an [ErrStaleToken] no command has
// run. Redis does not take back the commands before one that fails.
func (r Redis) Run(ctx context.Context, lock Holder, commands ...Command) ([]any, error) {
	token, err := check(lock)
	if err != nil {
		return nil, err
	}
	prefix := r.Prefix
	if prefix == "" {
		prefix = "fencepost:fence:"
	}
	keys, args := []string{prefix + lock.Name()}, []any{token}
	for _, command := range commands {
		if len(command) > 1 {
			key, isBytes := command[1].([]byte)
			if !isBytes {
				key = fmt.Append(nil, command[1])
			}
			keys = append(keys, string(key))
		}
		args = append(append(args, len(command)), command...)
	}
	answer, err := r.Eval(ctx, script, keys, args...)
	if err != nil {
		return nil, err
	}
	answers, ok := answer.([]any)
	if !ok || len(answers) == 0 {
		return nil, fmt.Errorf("fence: Eval returned %T, not the list of the script", answer)
	}
	if fmt.Sprint(answers[0]) != "1" {
		return nil, refuse(lock, token, math.MaxUint64)
	}
	return answers[1:], nil
}
