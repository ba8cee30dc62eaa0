package com.fencepost.client;

import com.fencepost.v1.SessionEvent.CommandError;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A call that failed. The subclasses are what callers act upon; for all others {@link #code()} and {@link #reason()} say
 * what happened, such as {@code INVALID_FIELD}.
 */
public class FencepostException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Metadata.Key<String> REASON = trailer("fencepost-reason");
    private static final Metadata.Key<String> CAUSE = trailer("fencepost-cause");
    private static final Set<String> BUSY =
            Set.of("DRAINING", "BACKEND_UNAVAILABLE", "NO_QUORUM", "BACKEND_QUARANTINED", "OVERLOADED");
    /** Codes that the transport gives when a connection is lost or a deadline passes. */
    private static final Set<Status.Code> OF_TRANSPORT = Set.of(Status.Code.UNAVAILABLE, Status.Code.UNKNOWN,
            Status.Code.CANCELLED, Status.Code.DEADLINE_EXCEEDED, Status.Code.INTERNAL);

    private final Status.Code code;
    private final String reason;
    /** How long the server asks to wait before a repetition, in nanoseconds. */
    private long retryNanos;
    private transient Map<String, String> details = Map.of();

    FencepostException(Status.Code code, String reason, String message, Throwable cause) {
        super(reason.isEmpty() ? message : reason + ": " + message, cause);
        this.code = code;
        this.reason = reason;
    }

    /** {@return the gRPC status code} */
    public Status.Code code() {
        return code;
    }

    /**
     * {@return the server's reason, such as {@code LOCK_HELD}; empty where no server answered; {@code INCOMPLETE} where an
     * answer lacks a lease, {@code TLS} where no TLS connection is possible, {@code CLOSED} of a closed client}
     */
    public String reason() {
        return reason;
    }

    /** {@return what the server says beside that, such as the {@code field} that is invalid} */
    public Map<String, String> details() {
        return details == null ? Map.of() : details;
    }

    long retryNanos() {
        return retryNanos;
    }

    /** Whether no server answered, or one that stops: another one may serve. */
    boolean isUnanswered() {
        return reason.equals("DRAINING") || reason.isEmpty() && OF_TRANSPORT.contains(code);
    }

    /** Whether a repetition may succeed. */
    boolean isTemporary() {
        return isUnanswered() || BUSY.contains(reason);
    }

    /** Whether the call may have taken effect. */
    boolean isUnknown() {
        return isUnanswered() || Set.of("INCOMPLETE", "BACKEND_UNAVAILABLE", "NO_QUORUM").contains(reason);
    }

    /** An answer that cannot be used. */
    static FencepostException incomplete() {
        return new FencepostException(Status.Code.INTERNAL, "INCOMPLETE", "the server's response lacks a required field", null);
    }

    static FencepostException of(Throwable error, String address) {
        if (error instanceof FencepostException known) {
            return known;
        }
        Status status = Status.fromThrowable(error);
        Metadata trailers = Status.trailersFromThrowable(error);
        String reason = trailers == null ? null : trailers.get(REASON);
        if (reason == null) {
            Throwable root = status.getCause();
            while (root != null && root.getCause() != null) {
                root = root.getCause();
            }
            return of(status.getCode(), "", "", address + ": " + (root == null ? status.getDescription() : root), List.of(), error);
        }
        var proto = StatusProto.fromThrowable(error);
        var details = proto == null ? List.<Any>of() : proto.getDetailsList();
        return of(status.getCode(), reason, trailers.get(CAUSE), status.getDescription(), details, error);
    }

    static FencepostException of(CommandError error) {
        return of(Status.fromCodeValue(error.getCode()).getCode(), error.getReason(), error.getCause(), error.getMessage(),
                error.getDetailsList(), null);
    }

    private static FencepostException of(
            Status.Code code, String reason, String lossCause, String message, List<Any> details, Throwable error) {
        FencepostException failed = switch (reason) {
            case "LOCK_HELD" -> new LockHeldException(message, error);
            case "WAIT_TIMEOUT" -> new WaitTimeoutException(message, error);
            case "LEASE_LOST" -> new LeaseLostException(lossCause, message, error);
            default -> switch (code) {
                case UNAUTHENTICATED -> new UnauthenticatedException(reason, message, error);
                case PERMISSION_DENIED -> new PermissionDeniedException(reason, message, error);
                default -> BUSY.contains(reason) || reason.isEmpty() && OF_TRANSPORT.contains(code)
                        ? new UnavailableException(code, reason, message, error)
                        : new FencepostException(code, reason, message, error);
            };
        };
        try {
            for (Any detail : details) {
                if (detail.is(RetryInfo.class)) {
                    failed.retryNanos = Times.nanos(detail.unpack(RetryInfo.class).getRetryDelay());
                } else if (detail.is(ErrorInfo.class)) {
                    failed.details = detail.unpack(ErrorInfo.class).getMetadataMap();
                }
            }
        } catch (InvalidProtocolBufferException unreadable) {
            // The reason is enough.
        }
        return failed;
    }

    private static Metadata.Key<String> trailer(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }
}
