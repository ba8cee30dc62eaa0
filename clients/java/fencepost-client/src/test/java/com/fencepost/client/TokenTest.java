package com.fencepost.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.testing.FencepostServer;
import com.fencepost.v1.LockServiceGrpc.LockServiceImplBase;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Tokens that a function returns. */
@Timeout(60)
class TokenTest {
    private final List<String> shown = new CopyOnWriteArrayList<>();

    /** A server that accepts no token, and says which it saw. */
    private io.grpc.Server refusing() throws Exception {
        var refuse = new ServerInterceptor() {
            @Override
            public <Q, A> ServerCall.Listener<Q> interceptCall(ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
                shown.add(headers.get(Settings.AUTHORIZATION));
                call.close(Status.UNAUTHENTICATED, new Metadata());
                return new ServerCall.Listener<>() {};
            }
        };
        return NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0))
                .addService(ServerInterceptors.intercept(new LockServiceImplBase() {}, refuse)).build().start();
    }

    private static FencepostClient with(String address, Supplier<String> token) {
        return FencepostClient.builder().address(address).bearerToken(token).build();
    }

    @Test
    void aRefusedTokenIsAskedForAgainAndTheThirdRefusalCounts() throws Exception {
        var server = refusing();
        var number = new AtomicInteger();
        try (var client = with("127.0.0.1:" + server.getPort(), () -> "t" + number.incrementAndGet())) {
            assertThrows(UnauthenticatedException.class, () -> client.lock("a").waitFor(Duration.ofMinutes(1)).acquire());
            assertTrue(shown.size() >= 3 && shown.get(0).startsWith("Bearer t"), shown::toString);
        }
        shown.clear();
        try (var client = with("127.0.0.1:" + server.getPort(), () -> "same")) {
            assertThrows(UnauthenticatedException.class, () -> client.lock("a").waitFor(Duration.ofMinutes(1)).acquire());
            assertEquals(List.of("Bearer same"), shown);
        }
        server.shutdownNow();
    }

    @Test
    void aFunctionThatHangsIsNotWaitedForAndIsCalledOnce() {
        var calls = new AtomicInteger();
        var hangs = new CountDownLatch(1);
        try (var client = with("127.0.0.1:1", () -> {
            calls.incrementAndGet();
            try {
                hangs.await();
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
            return "";
        })) {
            long begin = System.nanoTime();
            assertThrows(UnavailableException.class, () -> client.lock("a").acquire());
            assertTrue(Duration.ofNanos(System.nanoTime() - begin).toSeconds() < 30);
            assertEquals(1, calls.get());
        } finally {
            hangs.countDown();
        }
    }

    @Test
    void aFunctionThatFailsIsAskedAgain() throws Exception {
        var calls = new AtomicInteger();
        try (var server = FencepostServer.start(); var client = with(server.address(), () -> {
            if (calls.incrementAndGet() == 1) {
                throw new IllegalStateException("what gives the token is away");
            }
            return "t";
        }); HeldLock lock = client.lock("a").acquire()) {
            lock.check();
        }
        assertEquals(2, calls.get());
    }
}
