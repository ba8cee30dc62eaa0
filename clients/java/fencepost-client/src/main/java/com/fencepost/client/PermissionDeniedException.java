package com.fencepost.client;

import io.grpc.Status;

/** No rule of the server allows the call. */
public final class PermissionDeniedException extends FencepostException {
    private static final long serialVersionUID = 1;

    PermissionDeniedException(String reason, String message, Throwable cause) {
        super(Status.Code.PERMISSION_DENIED, reason, message, cause);
    }
}
