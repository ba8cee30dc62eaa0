package com.fencepost.client;

import io.grpc.Status;

/** The lease has ended, or may have ended: another claim may hold the lock now. */
public final class LeaseLostException extends FencepostException {
    private static final long serialVersionUID = 1;
    private final String lossCause;

    LeaseLostException(String lossCause, String message, Throwable cause) {
        super(Status.Code.FAILED_PRECONDITION, "LEASE_LOST", message, cause);
        this.lossCause = lossCause == null ? "unknown" : lossCause;
    }

    /**
     * {@return {@code expired}, {@code released}, {@code forced} or {@code unknown} as the server says; {@code unrenewed}
     * when no renewal was confirmed in time; {@code closed} when the client was closed}
     */
    public String lossCause() {
        return lossCause;
    }
}
