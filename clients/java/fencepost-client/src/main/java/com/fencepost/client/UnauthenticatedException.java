package com.fencepost.client;

import io.grpc.Status;

/** The server does not accept the credentials. */
public final class UnauthenticatedException extends FencepostException {
    private static final long serialVersionUID = 1;

    UnauthenticatedException(String reason, String message, Throwable cause) {
        super(Status.Code.UNAUTHENTICATED, reason, message, cause);
    }
}
