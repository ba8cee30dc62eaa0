package com.fencepost.fence;

import com.fencepost.client.HeldLock;
import java.io.IOException;

/**
 * The fencing token of a lock.
 *
 * @param lock the name of the lock
 * @param number from 1 to 2^53 - 1
 */
public record FencingToken(String lock, long number) {
    /** The header that carries the token of a call. */
    public static final String HEADER = "X-Fencing-Token";

    /**
     * A token that a request brought.
     *
     * @param lock the name of the lock
     * @param number from 1 to 2^53 - 1
     * @throws IllegalArgumentException if the number is none of a token
     */
    public FencingToken {
        if (number < 1 || number >= 1L << 53) {
            throw new IllegalArgumentException("a token is a number from 1 to 2^53 - 1, not " + number);
        }
    }

    /**
     * {@return the token of a held lock}
     *
     * @param lock is checked
     * @throws com.fencepost.client.LeaseLostException if the lease is or may be lost, or was released
     */
    public static FencingToken of(HeldLock lock) {
        return new FencingToken(lock.name(), lock.check());
    }

    /** {@return the value of {@link #HEADER}} */
    public String header() {
        return Long.toString(number);
    }

    static FencingToken parse(String lock, String text) {
        // parseLong also takes signs and the digits of other scripts.
        if (!text.matches("[0-9]{1,16}")) {
            throw new IllegalArgumentException("a token is a number from 1 to 2^53 - 1, not \"" + text + "\"");
        }
        return new FencingToken(lock, Long.parseLong(text));
    }

    /** The token that a resource keeps. An IllegalArgumentException is said of those that callers give. */
    static long parseKept(String text, String problem) throws IOException {
        try {
            return parse("", text).number();
        } catch (IllegalArgumentException bad) {
            throw new IOException(problem, bad);
        }
    }

    void compare(long highest) {
        if (highest > number) {
            throw new StaleTokenException(this);
        }
    }
}
