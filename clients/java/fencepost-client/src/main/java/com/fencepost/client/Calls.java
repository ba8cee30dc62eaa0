package com.fencepost.client;

import com.fencepost.client.Connections.Connection;
import io.grpc.Attributes;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ClientStreamTracer;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import java.util.function.Supplier;

/** The calls of a client. None of them blocks, and their answers arrive on threads of the transport. */
final class Calls {
    static final int UNLIMITED = Integer.MAX_VALUE;

    final Connections connections;
    final ScheduledExecutorService timer;
    final CallOptions options;

    Calls(Connections connections, ScheduledExecutorService timer) {
        this.connections = connections;
        this.timer = timer;
        options = CallOptions.DEFAULT.withCallCredentials(connections.bearer());
    }

    /** The failure of a call, whose connection is replaced if that helps. */
    FencepostException failed(Connection connection, Throwable error) {
        var failed = FencepostException.of(error, connection.address.text());
        if (failed instanceof UnavailableException unavailable) {
            connections.failed(connection, unavailable);
        }
        return failed;
    }

    /**
     * Sends a request once, for at most {@code limit} nanoseconds. Cancelling the future cancels the call.
     *
     * @param read gets the answer, and when the request was sent
     */
    <Q, A, T> CompletableFuture<T> once(
            Connection connection, MethodDescriptor<Q, A> method, Q request, long limit, BiFunction<A, Long, T> read) {
        // What an answer causes is short, so that it needs no thread of its own.
        var sent = new SendTime();
        var direct = options.withDeadlineAfter(limit, TimeUnit.NANOSECONDS).withExecutor(Runnable::run)
                .withStreamTracerFactory(sent);
        ClientCall<Q, A> call = connection.channel.newCall(method, direct);
        var answer = new CompletableFuture<T>();
        ClientCalls.asyncUnaryCall(call, request, new StreamObserver<>() {
            @Override
            public void onNext(A message) {
                answer.complete(read.apply(message, sent.nanos));
            }

            @Override
            public void onError(Throwable error) {
                if (!answer.isDone()) {
                    answer.completeExceptionally(failed(connection, error));
                }
            }

            @Override
            public void onCompleted() {}
        });
        answer.whenComplete((message, error) -> {
            if (answer.isCancelled()) {
                call.cancel("its caller has left", null);
            }
        });
        return answer;
    }

    /** Sends a request until a server answers, for at most {@code limit} nanoseconds. */
    <Q, A, T> CompletableFuture<T> call(MethodDescriptor<Q, A> method, Q request, long limit, BiFunction<A, Long, T> read) {
        long end = Times.now() + limit;
        var answer = new CompletableFuture<T>();
        // A third of the time is left for another connection.
        repeat(answer, end, UNLIMITED, () -> {
            long left = Math.max(end - Times.now(), 1);
            return once(connections.forCalls(), method, request, left > Times.seconds(2) ? left / 3 * 2 : left, read);
        });
        return answer;
    }

    /** Repeats what failed for a time until {@code end}; or so often, and then only where no server answered. */
    <A> void repeat(CompletableFuture<A> result, long end, int attempts, Supplier<CompletableFuture<A>> attempt) {
        repeat(result, end, attempts, 0, attempt);
    }

    private <A> void repeat(
            CompletableFuture<A> result, long end, int attempts, int failures, Supplier<CompletableFuture<A>> attempt) {
        CompletableFuture<A> sent;
        try {
            sent = attempt.get();
        } catch (RuntimeException unusable) {
            sent = CompletableFuture.failedFuture(unusable);
        }
        sent.whenComplete((answer, error) -> {
            if (error == null) {
                result.complete(answer);
                return;
            }
            Throwable cause = error;
            if (error instanceof FencepostException failed && failed.isTemporary() && !result.isDone()) {
                long pause = Math.max(Times.pause(failures), failed.retryNanos);
                boolean isWorthwhile = attempts == UNLIMITED || failures + 1 < attempts
                        && failed instanceof UnavailableException unavailable && unavailable.isUnanswered();
                if (isWorthwhile && Times.now() + pause < end) {
                    try {
                        timer.schedule(() -> repeat(result, end, attempts, failures + 1, attempt), pause, TimeUnit.NANOSECONDS);
                        return;
                    } catch (RejectedExecutionException closed) {
                        cause = new IllegalStateException("the client is closed", failed);
                    }
                }
            }
            result.completeExceptionally(cause);
        });
    }

    /** When a call was sent, over a connection that may have taken longer than a lease lives. */
    private static final class SendTime extends ClientStreamTracer.Factory {
        private volatile long nanos = Times.now();

        @Override
        public ClientStreamTracer newClientStreamTracer(ClientStreamTracer.StreamInfo info, Metadata headers) {
            return new ClientStreamTracer() {
                @Override
                public void streamCreated(Attributes transport, Metadata sentHeaders) {
                    nanos = Times.now();
                }
            };
        }
    }
}
