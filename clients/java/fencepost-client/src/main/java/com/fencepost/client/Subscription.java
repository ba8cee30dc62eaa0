package com.fencepost.client;

import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent;
import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/** A watch of a lock or an election. When too many of its messages are unread, it begins anew with the state of then. */
final class Subscription implements Registration {
    private static final int MOST_UNREAD = 1000;

    private final Session session;
    private final Command<Void> command;
    private final Executor executor;
    private final Consumer<SessionEvent> listener;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();

    // Guarded by the session.
    private final Deque<SessionEvent> unread = new ArrayDeque<>();
    private boolean isRead;
    /** Until it begins anew: what comes before continues a state that was dropped. */
    private boolean isSkipping;

    Subscription(Session session, SessionCommand.Builder message, Executor executor, Consumer<SessionEvent> listener) {
        this.session = session;
        this.executor = executor;
        this.listener = listener;
        command = new Command<>(Command.Kind.LOCAL, message, (result, sent) -> null);
        command.watch = this;
        session.send(command).done.whenComplete((nothing, error) -> FencepostClient.CALLBACKS.execute(() -> {
            if (error != null) {
                ended.completeExceptionally(error);
            }
        }));
    }

    @Override
    public CompletableFuture<Void> ended() {
        return ended;
    }

    @Override
    public void close() {
        ended.complete(null);
        session.unwatch(command);
    }

    /** Takes a message; false if the watch has to begin anew. */
    boolean add(SessionEvent event) {
        if (isSkipping) {
            return true;
        }
        unread.add(event);
        if (unread.size() >= MOST_UNREAD) {
            unread.clear();
            isSkipping = true;
        } else if (!isRead) {
            isRead = true;
            FencepostClient.CALLBACKS.execute(this::read);
        }
        return !isSkipping;
    }

    /** It is sent, perhaps once more. */
    void begins() {
        isSkipping = false;
    }

    /** Passes messages on, one at a time. A listener that fails ends nothing. */
    private void read() {
        for (SessionEvent event = next(); event != null; event = next()) {
            SessionEvent one = event;
            try {
                CompletableFuture.runAsync(() -> {
                    if (!ended.isDone()) {
                        listener.accept(one);
                    }
                }, executor).join();
            } catch (CompletionException failed) {
                Session.log(Level.ERROR, "a listener failed: " + failed.getCause());
            } catch (RuntimeException refused) { // The executor runs nothing any more.
                ended.completeExceptionally(refused);
                session.unwatch(command);
            }
        }
    }

    private SessionEvent next() {
        synchronized (session) {
            isRead = !unread.isEmpty();
            return unread.poll();
        }
    }
}
