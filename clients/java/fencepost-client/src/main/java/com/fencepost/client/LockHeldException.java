package com.fencepost.client;

import io.grpc.Status;
import java.time.Duration;
import java.util.Optional;

/** The lock is held or has waiters, and the call did not wait. */
public final class LockHeldException extends FencepostException {
    private static final long serialVersionUID = 1;

    LockHeldException(String message, Throwable cause) {
        super(Status.Code.ABORTED, "LOCK_HELD", message, cause);
    }

    /** {@return who holds it; empty if others wait for it and nobody holds it} */
    public Optional<String> owner() {
        return Optional.ofNullable(details().get("owner"));
    }

    /** {@return for how long its holder's lease lives without a renewal; empty if nobody holds it} */
    public Optional<Duration> remaining() {
        return Optional.ofNullable(details().get("remaining_ttl_ms")).map(left -> Duration.ofMillis(Long.parseLong(left)));
    }
}
