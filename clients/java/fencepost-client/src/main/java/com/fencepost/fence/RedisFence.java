package com.fencepost.fence;

import java.util.ArrayList;
import java.util.List;

/**
 * Commands of a lock's holders, which a newer holder's token refuses: a key in the Redis of the work has the highest token.
 *
 * <p>In a cluster, that key and those of the commands must share a slot: put the same <code>{tag}</code> into the lock's name and
 * into the keys. The key of the token must neither expire nor be deleted or evicted.
 */
public final class RedisFence {
    // Redis runs a script as one step. The first argument is the token; then come the commands, each behind its length. The key of a
    // command, its second word, is taken from KEYS, because clients that put a prefix before keys do so there alone.
    private static final String SCRIPT =
            """
            local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
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
            return answers""";

    private final Evaluate evaluate;
    private final String prefix;

    /** Runs a script: {@code jedis::eval}. */
    @FunctionalInterface
    public interface Evaluate {
        /**
         * Runs a script.
         *
         * @param script in Lua
         * @param keys of the script
         * @param arguments of the script
         * @return the list that the script returns
         */
        Object eval(String script, List<String> keys, List<String> arguments);
    }

    /**
     * A fence whose keys begin with {@code fencepost:fence:}.
     *
     * @param evaluate runs a script
     */
    public RedisFence(Evaluate evaluate) {
        this(evaluate, "fencepost:fence:");
    }

    /**
     * A fence.
     *
     * @param evaluate runs a script
     * @param prefix stands before the lock's name in the key of its token
     */
    public RedisFence(Evaluate evaluate, String prefix) {
        this.evaluate = evaluate;
        this.prefix = prefix;
    }

    /**
     * Raises a token, before the first read.
     *
     * @param token of the lock
     * @throws StaleTokenException if a newer holder has raised the key
     */
    public void raise(FencingToken token) {
        run(token);
    }

    /**
     * Compares, raises and runs the commands in one step: {@code run(token, List.of("SET", "total", "8"))}. Redis does not take
     * back the commands before one that fails.
     *
     * @param token of the lock
     * @param commands each with its key in the second place
     * @return the answers of the commands
     * @throws StaleTokenException if a newer holder has raised the key; no command has run then
     */
    @SafeVarargs
    public final List<Object> run(FencingToken token, List<String>... commands) {
        var keys = new ArrayList<>(List.of(prefix + token.lock()));
        var arguments = new ArrayList<>(List.of(token.header()));
        for (List<String> command : commands) {
            if (command.size() > 1) {
                keys.add(command.get(1));
            }
            arguments.add(Integer.toString(command.size()));
            arguments.addAll(command);
        }
        var answers = (List<?>) evaluate.eval(SCRIPT, keys, arguments);
        if (!answers.get(0).toString().equals("1")) {
            throw new StaleTokenException(token);
        }
        return new ArrayList<>(answers.subList(1, answers.size()));
    }
}
