package fencepost.example;

import static io.grpc.Status.Code.*;
import static java.util.concurrent.TimeUnit.*;

import com.fencepost.v1.*;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.util.Durations;
import com.google.rpc.ErrorInfo;
import io.grpc.*;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.util.*;
import java.util.concurrent.*;

/**
 * Locks of Fencepost that are kept until they are closed. Copy this file.
 *
 * <pre>try (var lock = locks.lock(AcquireRequest.newBuilder().setName("reports").setWait(Durations.fromSeconds(30)))) {
 *     lock.check(); // throws LeaseLost
 *     save(report, lock.token());
 * }</pre>
 *
 * A lease counts from before its request was sent, so that its loss is reported before another client can hold the lock.
 * A process can be paused between a check and a write: the resource must compare the tokens.
 */
public final class Locks {
    private static final Set<Status.Code> RETRYABLE = EnumSet.of(UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, UNKNOWN, CANCELLED);
    private static final long RETRY = MILLISECONDS.toNanos(200);

    public final LockServiceGrpc.LockServiceBlockingStub stub;
    private final ManagedChannel channel;
    private final String owner;
    private final Map<String, Lock> held = new ConcurrentHashMap<>();
    private final Queue<Beat> beats = new ArrayDeque<>(); // Those without an answer; the server answers them in order.
    private StreamObserver<KeepAliveRequest> stream;
    private record Beat(long sent, List<Lock> locks) {}

    /** A failed call. Its message begins with the reason of the server's ErrorInfo, or the gRPC code if there is none. */
    public static class FencepostException extends RuntimeException {
        FencepostException(String reason, String message) { super(reason + ": " + message); }
    }
    public static final class LockHeld extends FencepostException { LockHeld(String message) { super("LOCK_HELD", message); } }
    public static final class WaitTimeout extends FencepostException { WaitTimeout(String message) { super("WAIT_TIMEOUT", message); } }
    /** A repetition may succeed. */
    public static final class Unavailable extends FencepostException { Unavailable(String reason, String message) { super(reason, message); } }
    public static final class LeaseLost extends FencepostException { LeaseLost(String message) { super("LEASE_LOST", message); } }

    private static FencepostException typed(StatusRuntimeException error) {
        String reason = error.getStatus().getCode().name(), message = error.getStatus().getDescription();
        try {
            for (Any any : StatusProto.fromThrowable(error).getDetailsList()) if (any.is(ErrorInfo.class)) reason = any.unpack(ErrorInfo.class).getReason();
        } catch (InvalidProtocolBufferException unreadable) { message += " (" + unreadable.getMessage() + ")"; }
        return switch (reason) {
            case "LOCK_HELD" -> new LockHeld(message);
            case "WAIT_TIMEOUT" -> new WaitTimeout(message);
            case "LEASE_LOST" -> new LeaseLost(message);
            default -> RETRYABLE.contains(error.getStatus().getCode()) ? new Unavailable(reason, message) : new FencepostException(reason, message);
        };
    }

    /** Up to 1000 locks, kept by one KeepAlive stream. */
    public Locks(String address, String owner) {
        this.owner = owner;
        channel = ManagedChannelBuilder.forTarget(address).usePlaintext().keepAliveTime(5, SECONDS).keepAliveTimeout(5, SECONDS).build();
        stub = LockServiceGrpc.newBlockingStub(channel);
        open();
    }

    /** Waits for a lock. Throws LockHeld or WaitTimeout. By its request id, a repeated call finds the claim of the first. */
    public Lock lock(AcquireRequest.Builder request) throws InterruptedException {
        long end = System.nanoTime() + Durations.toNanos(request.getWait());
        request.setNamespace("default").setOwner(owner).setRequestId(UUID.randomUUID().toString());
        while (true) {
            long sent = System.nanoTime(), wait = Math.max(end - sent, 0);
            try {
                Lease lease = stub.withDeadlineAfter(wait + 5_000_000_000L, NANOSECONDS)
                        .acquire(request.setWait(Durations.fromNanos(wait)).build()).getLease();
                return new Lock(lease, sent + Durations.toNanos(lease.getWaited()) + Durations.toNanos(lease.getTtl()));
            } catch (StatusRuntimeException error) {
                FencepostException failed = typed(error);
                if (!(failed instanceof Unavailable) || System.nanoTime() + RETRY >= end) throw failed;
            }
            NANOSECONDS.sleep(RETRY);
            channel.resetConnectBackoff();
        }
    }

    public final class Lock implements AutoCloseable {
        private final Lease lease;
        /** Completes with the cause when the lease is or may be lost. */
        public final CompletableFuture<String> lost = new CompletableFuture<>();
        private volatile long until;
        private Lock(Lease lease, long until) {
            this.lease = lease;
            this.until = until;
            held.put(lease.getLeaseId(), this);
            beat(); // At once, so that the server asks for the next one in time.
            watch();
        }
        public long token() { return lease.getFencingToken(); }
        /** Throws LeaseLost if the lease is or may be lost. It reads the clock, so it is right after a pause too. */
        public void check() { if (isLost()) throw new LeaseLost(lost.join()); }
        private boolean isLost() {
            if (System.nanoTime() - until >= 0) lost.complete("no renewal was confirmed in time");
            return lost.isDone();
        }
        private void watch() {
            if (!isLost() && held.containsValue(this)) later(until - System.nanoTime(), this::watch);
        }
        @Override public void close() {
            held.remove(lease.getLeaseId());
            if (lost.isDone()) throw new LeaseLost(lost.join()); // Not the exception of check: nothing can be suppressed by itself.
            try { // Without an answer, the lease ends with its TTL.
                stub.withDeadlineAfter(5, SECONDS).withWaitForReady().release(ReleaseRequest.newBuilder().setLeaseId(lease.getLeaseId()).build());
            } catch (StatusRuntimeException error) {
                if (typed(error) instanceof LeaseLost ended) throw ended;
            }
        }
    }

    private static void later(long nanos, Runnable task) { CompletableFuture.delayedExecutor(nanos, NANOSECONDS).execute(task); }
    private synchronized void beat() {
        List<Lock> locks = held.values().stream().filter(lock -> !lock.lost.isDone()).toList();
        beats.add(new Beat(System.nanoTime(), locks));
        stream.onNext(KeepAliveRequest.newBuilder().addAllLeaseIds(locks.stream().map(lock -> lock.lease.getLeaseId()).toList()).build());
    }

    private synchronized void open() {
        beats.clear();
        channel.resetConnectBackoff(); // The stream begins with an ask, whose answer names all leases again.
        stream = LockServiceGrpc.newStub(channel).keepAlive(new StreamObserver<>() {
            @Override public void onNext(KeepAliveResponse event) { answer(event); }
            @Override public void onError(Throwable error) { onCompleted(); }
            @Override public void onCompleted() { later(RETRY, Locks.this::open); }
        });
    }

    private synchronized void answer(KeepAliveResponse event) {
        if (event.hasAsk()) beat();
        if (event.hasKept()) {
            Beat beat = beats.remove();
            for (int i = 0; i < beat.locks.size(); i++)
                beat.locks.get(i).until = Math.max(beat.locks.get(i).until, beat.sent + Durations.toNanos(event.getKept().getTtls(i)));
        }
        Lock lock = held.get(event.getLost().getLeaseId());
        if (lock != null && event.getLost().getReason().equals("LEASE_LOST")) lock.lost.complete(event.getLost().getCause());
    }
}
