package com.fencepost.fence;

/** A newer holder of the lock has used the resource: nothing was changed. */
public class StaleTokenException extends RuntimeException {
    private static final long serialVersionUID = 1;

    StaleTokenException(FencingToken token) {
        super("token " + token.number() + " of \"" + token.lock() + "\" is older than the highest that this resource has seen");
    }
}
