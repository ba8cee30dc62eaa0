package com.fencepost.client;

import com.fencepost.client.Connections.Connection;
import io.grpc.Context;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/** A stream of the server that is opened again when it breaks. One event is fetched when the one before was taken. */
final class Subscription<Q, A> implements Registration {
    private final Calls calls;
    private final MethodDescriptor<Q, A> method;
    private final Q request;
    private final Consumer<A> listener;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private final Context.CancellableContext context = Context.ROOT.withCancellation();

    Subscription(FencepostClient client, MethodDescriptor<Q, A> method, Q request, Executor executor, Consumer<A> listener) {
        calls = client.calls;
        this.method = method;
        this.request = request;
        this.listener = event -> CompletableFuture.runAsync(() -> {
            if (!ended.isDone()) {
                listener.accept(event);
            }
        }, executor).join();
        client.callbacks.execute(context.wrap(this::run));
    }

    @Override
    public CompletableFuture<Void> ended() {
        return ended;
    }

    @Override
    public void close() {
        ended.complete(null);
        context.cancel(null);
    }

    private void run() {
        try {
            for (int failures = 0; !ended.isDone(); failures++) {
                Connection connection = calls.connections.forWait();
                try {
                    var events = ClientCalls.blockingServerStreamingCall(connection.channel, method, calls.options, request);
                    while (events.hasNext()) {
                        listener.accept(events.next());
                        failures = 0;
                    }
                } catch (StatusRuntimeException broken) {
                    if (ended.isDone()) {
                        return;
                    }
                    var failed = calls.failed(connection, broken);
                    if (!(failed instanceof UnavailableException)) {
                        throw failed;
                    }
                } finally {
                    calls.connections.ended(connection);
                }
                LockSupport.parkNanos(ended.isDone() ? 1 : Times.pause(failures));
            }
        } catch (RuntimeException failure) { // Of the listener or of the server, or the client is closed.
            ended.completeExceptionally(failure);
        }
    }
}
