package com.fencepost.client;

import io.grpc.Status;

/** The client was closed. */
public final class ClientClosedException extends FencepostException {
    private static final long serialVersionUID = 1;

    ClientClosedException() {
        super(Status.Code.CANCELLED, "CLOSED", "the client is closed", null);
    }
}
