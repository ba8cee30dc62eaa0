package com.fencepost.client;

import com.fencepost.client.Connections.Connection;
import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.Lease;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * One attempt to take locks. All its calls have the same request id, by which a later one finds the claim of an earlier
 * one: a repeated call keeps its place in the queue, and an abandoned one is undone.
 */
final class Acquisition<L> {
    /** A wait of more than this is handed over to a later call, before a proxy ends the first one for idleness. A test shortens it. */
    static long handOver = Times.seconds(45);
    /** How long a call goes on when another one was granted: it finds the same claim. */
    private static final long LATE_ANSWER = Times.seconds(2);
    private static final long LONGEST_CALL = Times.seconds(60);
    /** What a call gets beyond its wait. */
    private static final long PATIENCE = Times.seconds(4);
    private static final int TRIES = 3;

    /** The method that takes the locks. */
    interface Verb {
        CompletableFuture<Grant> send(Calls calls, Connection connection, AcquireRequest request, long limit);
    }

    record Grant(List<Lease> leases, long sent) {
        /** The lease of an answer, if it has one. */
        static Grant of(boolean hasLease, Lease lease, long sent) {
            return new Grant(hasLease ? List.of(lease) : List.of(), sent);
        }

        String id() {
            return leases.isEmpty() ? "" : leases.get(0).getLeaseId();
        }
    }

    /** Completes on a thread of the transport. */
    final CompletableFuture<L> granted = new CompletableFuture<>();
    private final LockRequest<L> request;
    private final FencepostClient client;
    private final AcquireRequest template;
    private final long wait;
    private final long end;
    private final Set<CompletableFuture<?>> inFlight = ConcurrentHashMap.newKeySet();
    private volatile List<HeldLock> locks = List.of();

    Acquisition(LockRequest<L> request) {
        this.request = request;
        client = request.client;
        template = request.template.setRequestId(UUID.randomUUID().toString()).build();
        wait = request.wait;
        end = Times.now() + (wait > 0 ? wait : 2 * PATIENCE);
        var span = Spans.acquire(template, wait);
        client.begin(this);
        var answer = new CompletableFuture<Grant>();
        client.calls.repeat(answer, end, wait > 0 ? Calls.UNLIMITED : TRIES, this::attempt);
        answer.whenComplete((grant, failure) -> {
            boolean isIncomplete = failure == null && grant.leases.size() != request.count;
            Throwable error = isIncomplete ? FencepostException.incomplete() : failure;
            if (error == null) {
                locks = grant.leases.stream().map(lease -> client.hold(lease, grant.sent, span)).toList();
                if (!granted.complete(request.result.apply(locks))) {
                    locks.forEach(HeldLock::release);
                }
            } else {
                if (isIncomplete || error instanceof CancellationException || error instanceof UnavailableException) {
                    undo();
                }
                granted.completeExceptionally(error);
            }
            span.end(error);
        });
    }

    /** Leaves the queue. What is or was granted is given back. */
    void abandon() {
        fail(new CancellationException());
    }

    void fail(RuntimeException why) {
        if (granted.completeExceptionally(why)) {
            synchronized (this) { // A call that is being sent.
                cancel();
            }
        } else {
            locks.forEach(HeldLock::release);
        }
    }

    private CompletableFuture<Grant> attempt() {
        var answer = new CompletableFuture<Grant>();
        send(answer);
        return answer;
    }

    private synchronized void send(CompletableFuture<Grant> answer) {
        if (granted.isDone()) {
            answer.cancel(false);
            return;
        }
        // A call that waits never becomes a try, whose errors differ.
        long left = wait > 0 ? Math.max(end - Times.now(), Times.millis(1)) : 0;
        long asked = left > handOver ? Math.min(left, LONGEST_CALL) : left;
        var connections = client.calls.connections;
        Connection connection = wait > 0 ? connections.forWait() : connections.forCalls();
        var call = request.verb.send(
                client.calls, connection, template.toBuilder().setWait(Times.wire(asked)).build(), asked + PATIENCE);
        inFlight.add(call);
        var next = left <= handOver ? null
                : client.calls.timer.schedule(() -> send(answer), handOver, TimeUnit.NANOSECONDS);
        call.whenComplete((grant, error) -> {
            inFlight.remove(call);
            if (wait > 0) {
                connections.ended(connection);
            }
            // Otherwise a later call has taken the claim over.
            boolean isLast = next == null || next.cancel(false);
            if (error == null) {
                granted(answer, grant);
            } else if (isLast) {
                answer.completeExceptionally(error);
            }
        });
    }

    /** The first grant counts. A store that remembers no requests grants each call. */
    private void granted(CompletableFuture<Grant> answer, Grant grant) {
        if (!answer.complete(grant)) {
            var isOther = answer.handle((first, failed) -> failed == null && !first.id().equals(grant.id()));
            if (isOther.join()) {
                client.inBackground(release(grant));
            }
        } else if (!inFlight.isEmpty()) {
            client.calls.timer.schedule(this::cancel, LATE_ANSWER, TimeUnit.NANOSECONDS);
        }
    }

    private void cancel() {
        inFlight.forEach(call -> call.cancel(false));
    }

    private CompletableFuture<Void> release(Grant grant) {
        return CompletableFuture.allOf(grant.leases.stream()
                .map(lease -> client.releaseCall(lease.getLeaseId(), PATIENCE)).toArray(CompletableFuture<?>[]::new));
    }

    /** Finds what an unanswered call may have been given, and releases it. */
    private void undo() {
        var found = new CompletableFuture<Grant>();
        client.calls.repeat(found, Times.now() + 3 * PATIENCE, Calls.UNLIMITED, () -> request.verb.send(
                client.calls, client.calls.connections.forCalls(), template.toBuilder().clearWait().build(), PATIENCE));
        var undone = found.thenCompose(this::release)
                // Mostly, that the lock is held: by others.
                .exceptionally(nothingFound -> null);
        // The client's close does not wait longer for a server that does not answer.
        client.inBackground(undone.copy().completeOnTimeout(null, 1, TimeUnit.SECONDS));
    }
}
