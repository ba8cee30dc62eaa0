package com.fencepost.client;

import io.grpc.Status;

/**
 * No server answered, or the one that did cannot serve now, because it is overloaded or stopping, or cannot reach its
 * store. A repetition may succeed.
 */
public final class UnavailableException extends FencepostException {
    private static final long serialVersionUID = 1;

    UnavailableException(Status.Code code, String reason, String message, long retryNanos, Throwable cause) {
        super(code, reason, message, retryNanos, cause);
    }

    @Override
    boolean isTemporary() {
        return true;
    }

    /** Whether no server answered, so that the effect of the call is unknown. */
    boolean isUnanswered() {
        return reason().isEmpty();
    }

    /** Whether a repetition needs a new connection. */
    boolean isOfConnection() {
        return isUnanswered() || reason().equals("DRAINING");
    }
}
