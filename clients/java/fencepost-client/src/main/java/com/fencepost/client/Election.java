package com.fencepost.client;

import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.Leader;
import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent;
import java.lang.System.Logger.Level;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/** An election: the exclusive lock of the same name, whose holder is the leader. Thread-safe. */
public final class Election {
    /** What observers see of a leader; a token of 0 without one. */
    private record Term(long token, String value) {}

    private final FencepostClient client;
    private final String name;

    Election(FencepostClient client, String name) {
        this.client = client;
        this.name = name;
    }

    /**
     * Prepares a campaign, which {@link LockRequest#acquire()} begins. It has neither modes nor metadata.
     *
     * @param value what observers see of this leader, such as its address; at most 4096 bytes
     * @return a request for the leadership
     */
    public LockRequest<Leadership> campaign(String value) {
        return new LockRequest<>(client, client.template(name), 1, request -> campaign(request, value),
                leases -> new Leadership(client, leases.get(0)));
    }

    private static SessionCommand.Builder campaign(AcquireRequest request, String value) {
        if (request.hasMode() || request.getMetadataCount() > 0) {
            throw new IllegalArgumentException("a campaign has neither a mode nor metadata");
        }
        var campaign = SessionCommand.Campaign.newBuilder().setNamespace(request.getNamespace()).setKeep(true)
                .setElection(request.getName()).setCandidate(request.getOwner()).setRequestId(request.getRequestId())
                .setValue(value);
        if (request.hasTtl()) {
            campaign.setTtl(request.getTtl());
        }
        return SessionCommand.newBuilder().setCampaign(campaign);
    }

    /**
     * Is a candidate until the registration is closed: waits for the leadership, and again after each loss of it.
     *
     * @param campaign from {@link #campaign(String)}, with its time to live; it is used for each campaign
     * @param executor runs the callbacks, each of which may block
     * @param onElected gets the leadership; if it fails, the leadership is resigned and campaigned for again
     * @param onDeposed gets the loss, perhaps while {@code onElected} runs
     * @return to be closed; that resigns, and returns when it is confirmed or after 5 s
     */
    public Registration lead(LockRequest<Leadership> campaign, Executor executor, Consumer<Leadership> onElected,
            Consumer<LeaseLostException> onDeposed) {
        campaign.waitForever();
        return new Loop("fencepost-candidate", ended -> {
            Leadership leadership = campaign.acquire();
            var over = new CompletableFuture<Object>();
            leadership.lease.lost.thenAccept(over::complete);
            leadership.onLost(executor, onDeposed);
            try {
                CompletableFuture.runAsync(() -> onElected.accept(leadership), executor)
                        .exceptionally(failed -> fail(over, failed));
                over.get();
            } catch (ExecutionException failed) {
                Session.log(Level.ERROR, "resigning, because the leader of " + name + " failed: " + failed.getCause());
            } finally {
                leadership.release().exceptionally(lostOrUnconfirmed -> null).join();
            }
            return true;
        });
    }

    private static Void fail(CompletableFuture<?> future, Throwable failure) {
        if (failure != null) {
            future.completeExceptionally(failure);
        }
        return null;
    }

    /**
     * Observes who leads: the present leader or none first, then each change of the leader or its value. Goes on when the
     * server restarts, and never shows a leader again after a later one.
     *
     * @param executor runs the listener, one event at a time; leaders that end meanwhile may be left out
     * @param listener gets the leader, or empty if nobody leads
     * @return to be closed
     */
    public Registration observe(Executor executor, Consumer<Optional<Leader>> listener) {
        var newest = new AtomicLong();
        var last = new AtomicReference<Term>();
        var request = SessionCommand.Observe.newBuilder().setNamespace(client.namespace()).setElection(name);
        return new Subscription(client.session, SessionCommand.newBuilder().setObserve(request), executor, event -> {
            var leader = event.getObserved().getLeader();
            var term = new Term(leader.getFencingToken(), leader.getValue());
            // A stream that was opened again begins with the present leader, and perhaps at a server that is behind.
            boolean isBehind = event.getObserved().hasLeader() && term.token < newest.get();
            if (!isBehind && !term.equals(last.getAndSet(term))) {
                newest.accumulateAndGet(term.token, Math::max);
                listener.accept(event.getObserved().hasLeader() ? Optional.of(shown(leader)) : Optional.empty());
            }
        });
    }

    private static Leader shown(SessionEvent.Leader leader) {
        return Leader.newBuilder().setCandidate(leader.getCandidate()).setFencingToken(leader.getFencingToken())
                .setValue(leader.getValue()).setRemainingTtl(leader.getRemainingTtl()).setSince(leader.getSince())
                .setIdentity(leader.getIdentity()).build();
    }

    /**
     * {@return the present leader; empty if nobody leads}
     *
     * @throws FencepostException if no server answers within 10 s, or the server refuses
     */
    public Optional<Leader> leader() {
        var first = new CompletableFuture<Optional<Leader>>();
        try (var observed = observe(Runnable::run, first::complete)) {
            observed.ended().whenComplete((nothing, error) -> fail(first, error));
            return FencepostClient.join(first.orTimeout(Session.CALL, TimeUnit.NANOSECONDS).exceptionallyCompose(error ->
                    CompletableFuture.failedFuture(error instanceof TimeoutException ? client.session.unanswered() : error)));
        }
    }
}
