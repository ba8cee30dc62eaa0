package com.fencepost.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A task that is repeated on a thread of its own until it is closed, which interrupts it. */
final class Loop implements Registration {
    interface Task {
        /** Returns whether it worked, so that the pause before the next run is short. */
        boolean run(CompletableFuture<Void> ended) throws InterruptedException;
    }

    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private final CompletableFuture<Void> stopped = new CompletableFuture<>();
    private final Thread thread;

    Loop(String name, Task task) {
        thread = FencepostClient.daemons(name).newThread(() -> run(task));
        thread.start();
    }

    @Override
    public CompletableFuture<Void> ended() {
        return ended;
    }

    @Override
    public void close() {
        ended.complete(null);
        thread.interrupt();
        // A callback that closes its own registration does not wait for itself.
        if (thread != Thread.currentThread()) {
            stopped.completeOnTimeout(null, Session.RELEASE, TimeUnit.NANOSECONDS).join();
        }
    }

    private void run(Task task) {
        try {
            for (int failures = 0; !ended.isDone(); failures++) {
                failures = task.run(ended) ? -1 : failures;
                TimeUnit.NANOSECONDS.sleep(Times.pause(failures, 0));
            }
        } catch (InterruptedException closed) {
            ended.complete(null);
        } catch (RuntimeException failure) { // Of a callback or of the server, or the client is closed.
            ended.completeExceptionally(failure);
        } finally {
            stopped.complete(null);
        }
    }
}
