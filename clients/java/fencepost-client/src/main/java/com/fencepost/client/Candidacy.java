package com.fencepost.client;

import java.lang.System.Logger.Level;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/** A candidate of an election, in one campaign or leadership after the other. */
final class Candidacy implements Registration {
    private static final System.Logger LOG = System.getLogger("com.fencepost.client");

    private final LockRequest<Leadership> campaign;
    private final Executor executor;
    private final Consumer<Leadership> onElected;
    private final Consumer<LeaseLostException> onDeposed;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    /** Guarded by this. */
    private CompletableFuture<Leadership> attempt;

    Candidacy(LockRequest<Leadership> campaign, Executor executor, Consumer<Leadership> onElected,
            Consumer<LeaseLostException> onDeposed) {
        this.campaign = campaign;
        this.executor = executor;
        this.onElected = onElected;
        this.onDeposed = onDeposed;
        campaign();
    }

    @Override
    public CompletableFuture<Void> ended() {
        return ended;
    }

    @Override
    public void close() {
        CompletableFuture<Leadership> last;
        synchronized (this) {
            ended.complete(null);
            last = attempt;
        }
        last.cancel(false);
        last.thenCompose(HeldLock::release).exceptionally(lostOrCancelled -> null).join();
    }

    private synchronized void campaign() {
        if (ended.isDone()) {
            return;
        }
        attempt = campaign.acquireAsync();
        attempt.whenComplete((leadership, error) -> {
            if (error == null) {
                leadership.onLost(executor, loss -> {
                    try {
                        onDeposed.accept(loss);
                    } finally {
                        campaign();
                    }
                });
                executor.execute(() -> lead(leadership));
            } else if (!(error instanceof CancellationException)) {
                ended.completeExceptionally(error);
            }
        });
    }

    private void lead(Leadership leadership) {
        try {
            onElected.accept(leadership);
        } catch (RuntimeException | Error failed) {
            LOG.log(Level.ERROR, "resigning, because the leader of " + leadership.name() + " failed", failed);
            leadership.release().whenComplete((nothing, error) -> {
                if (!(error instanceof LeaseLostException)) {
                    campaign();
                }
            });
        }
    }
}
