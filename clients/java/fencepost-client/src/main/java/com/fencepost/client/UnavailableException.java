package com.fencepost.client;

import io.grpc.Status;

/**
 * No server answered, or the one that did cannot serve now, because it is overloaded or stopping, or cannot reach its
 * store. A repetition may succeed, unless the reason is {@code TLS}.
 */
public final class UnavailableException extends FencepostException {
    private static final long serialVersionUID = 1;

    UnavailableException(Status.Code code, String reason, String message, Throwable cause) {
        super(code, reason, message, cause);
    }

    /** No server answered in time. */
    static UnavailableException late() {
        return new UnavailableException(Status.Code.DEADLINE_EXCEEDED, "", "no server answered in time", null);
    }
}
