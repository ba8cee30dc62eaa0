package com.fencepost.client;

import io.grpc.Status;

/** The lock is held or has waiters, and the call did not wait. */
public final class LockHeldException extends FencepostException {
    private static final long serialVersionUID = 1;

    LockHeldException(String message, Throwable cause) {
        super(Status.Code.ABORTED, "LOCK_HELD", message, 0, cause);
    }
}
