package com.fencepost.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.util.Set;

/**
 * A call that failed. The subclasses are what callers act upon; for all others {@link #code()} and {@link #reason()} say
 * what happened, such as {@code PERMISSION_DENIED} or {@code INVALID_FIELD}.
 */
public class FencepostException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Metadata.Key<String> REASON = trailer("fencepost-reason");
    private static final Metadata.Key<String> CAUSE = trailer("fencepost-cause");
    private static final Set<String> TEMPORARY =
            Set.of("DRAINING", "BACKEND_UNAVAILABLE", "NO_QUORUM", "BACKEND_QUARANTINED", "OVERLOADED");
    /** Codes that the transport gives when a connection is lost or a deadline passes. */
    private static final Set<Status.Code> OF_TRANSPORT = Set.of(Status.Code.UNAVAILABLE, Status.Code.UNKNOWN,
            Status.Code.CANCELLED, Status.Code.DEADLINE_EXCEEDED, Status.Code.INTERNAL);

    private final Status.Code code;
    private final String reason;
    /** How long the server asks to wait before a repetition, in nanoseconds. */
    final long retryNanos;

    FencepostException(Status.Code code, String reason, String message, long retryNanos, Throwable cause) {
        super(reason.isEmpty() ? message : reason + ": " + message, cause);
        this.code = code;
        this.reason = reason;
        this.retryNanos = retryNanos;
    }

    /** {@return the gRPC status code} */
    public Status.Code code() {
        return code;
    }

    /**
     * {@return the server's reason, such as {@code LOCK_HELD}; empty where no server answered, and {@code INCOMPLETE} where
     * an answer lacks a lease}
     */
    public String reason() {
        return reason;
    }

    /** Whether a repetition may succeed. A queue that is full is so at each server. */
    boolean isTemporary() {
        return reason.equals("QUEUE_FULL");
    }

    /** An answer that cannot be used. */
    static FencepostException incomplete() {
        return new FencepostException(
                Status.Code.INTERNAL, "INCOMPLETE", "the server's response lacks a required field", 0, null);
    }

    static FencepostException of(Throwable error, String address) {
        if (error instanceof FencepostException known) {
            return known;
        }
        Status status = Status.fromThrowable(error);
        Metadata trailers = Status.trailersFromThrowable(error);
        String reason = trailers == null ? null : trailers.get(REASON);
        String message = status.getDescription();
        long retry = retryDelay(error);
        if (reason == null) {
            Throwable root = status.getCause();
            while (root != null && root.getCause() != null) {
                root = root.getCause();
            }
            message = address + ": " + (root == null ? message : root);
            reason = "";
        }
        return switch (reason) {
            case "LOCK_HELD" -> new LockHeldException(message, error);
            case "WAIT_TIMEOUT" -> new WaitTimeoutException(message, error);
            case "LEASE_LOST" -> new LeaseLostException(trailers.get(CAUSE), message, error);
            default -> TEMPORARY.contains(reason) || reason.isEmpty() && OF_TRANSPORT.contains(status.getCode())
                    ? new UnavailableException(status.getCode(), reason, message, retry, error)
                    : new FencepostException(status.getCode(), reason, message, retry, error);
        };
    }

    private static long retryDelay(Throwable error) {
        try {
            for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
                if (detail.is(RetryInfo.class)) {
                    return Times.nanos(detail.unpack(RetryInfo.class).getRetryDelay());
                }
            }
        } catch (InvalidProtocolBufferException | RuntimeException unreadable) {
            // The pause is then the client's own.
        }
        return 0;
    }

    private static Metadata.Key<String> trailer(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }
}
