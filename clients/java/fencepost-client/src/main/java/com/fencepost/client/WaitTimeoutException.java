package com.fencepost.client;

import io.grpc.Status;

/** The lock was not granted within the wait. */
public final class WaitTimeoutException extends FencepostException {
    private static final long serialVersionUID = 1;

    WaitTimeoutException(String message, Throwable cause) {
        super(Status.Code.ABORTED, "WAIT_TIMEOUT", message, cause);
    }
}
