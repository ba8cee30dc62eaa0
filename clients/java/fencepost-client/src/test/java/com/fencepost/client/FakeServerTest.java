package com.fencepost.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fencepost.v1.AcquireAllRequest;
import com.fencepost.v1.AcquireAllResponse;
import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.AcquireResponse;
import com.fencepost.v1.CampaignRequest;
import com.fencepost.v1.CampaignResponse;
import com.fencepost.v1.ElectionServiceGrpc.ElectionServiceImplBase;
import com.fencepost.v1.GetLockRequest;
import com.fencepost.v1.GetLockResponse;
import com.fencepost.v1.KeepAliveRequest;
import com.fencepost.v1.KeepAliveResponse;
import com.fencepost.v1.LockServiceGrpc.LockServiceImplBase;
import com.fencepost.v1.ReleaseRequest;
import com.fencepost.v1.ReleaseResponse;
import com.fencepost.v1.RenewRequest;
import com.fencepost.v1.RenewResponse;
import com.fencepost.v1.WatchLockRequest;
import com.fencepost.v1.WatchLockResponse;
import io.grpc.Server;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Answers that a real server gives only in rare moments. */
@Timeout(40)
class FakeServerTest extends LockServiceImplBase {
    private final LinkedBlockingQueue<String> released = new LinkedBlockingQueue<>();
    private final LinkedBlockingQueue<StreamObserver<AcquireResponse>> waits = new LinkedBlockingQueue<>();
    private final Set<String> requests = ConcurrentHashMap.newKeySet();
    private final CompletableFuture<Void> waitEnded = new CompletableFuture<>();
    private final CompletableFuture<Void> watchEnded = new CompletableFuture<>();
    private final AtomicInteger streams = new AtomicInteger();
    private Server server;
    private FencepostClient client;

    @BeforeEach
    void start() throws Exception {
        server = NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0))
                .addService(this).addService(new ElectionServiceImplBase() {
                    @Override
                    public void campaign(CampaignRequest request, StreamObserver<CampaignResponse> call) {
                        answer(call, CampaignResponse.getDefaultInstance());
                    }
                }).build().start();
        client = FencepostClient.builder().address("127.0.0.1:" + server.getPort()).build();
    }

    @AfterEach
    void stop() {
        client.close();
        server.shutdownNow();
    }

    private static <A> void answer(StreamObserver<A> call, A message) {
        call.onNext(message);
        call.onCompleted();
    }

    @Override
    public void acquire(AcquireRequest request, StreamObserver<AcquireResponse> call) {
        requests.add(request.getRequestId());
        if (request.getName().equals("granted twice")) {
            ((ServerCallStreamObserver<?>) call).setOnCancelHandler(() -> waitEnded.complete(null));
            waits.add(call);
            return;
        }
        answer(call, request.getName().equals("lacking") ? AcquireResponse.getDefaultInstance()
                : AcquireResponse.newBuilder().setLease(granted(request.getName(), request.getTtl())).build());
    }

    @Override
    public void acquireAll(AcquireAllRequest request, StreamObserver<AcquireAllResponse> call) {
        var answer = AcquireAllResponse.newBuilder();
        request.getLocksList().stream().skip(1)
                .forEach(lock -> answer.addLeases(granted(lock.getName(), request.getTtl())));
        answer(call, answer.build());
    }

    @Override
    public void renew(RenewRequest request, StreamObserver<RenewResponse> call) {
        answer(call, RenewResponse.getDefaultInstance());
    }

    @Override
    public void getLock(GetLockRequest request, StreamObserver<GetLockResponse> call) {
        answer(call, GetLockResponse.getDefaultInstance());
    }

    private static com.fencepost.v1.Lease.Builder granted(String name, com.google.protobuf.Duration ttl) {
        return com.fencepost.v1.Lease.newBuilder().setLeaseId(name).setFencingToken(1).setTtl(ttl);
    }

    @Override
    public void release(ReleaseRequest request, StreamObserver<ReleaseResponse> call) {
        released.add(request.getLeaseId());
        answer(call, ReleaseResponse.getDefaultInstance());
    }

    @Override
    public void watchLock(WatchLockRequest request, StreamObserver<WatchLockResponse> call) {
        ((ServerCallStreamObserver<?>) call).setOnCancelHandler(() -> watchEnded.complete(null));
        call.onNext(WatchLockResponse.getDefaultInstance());
    }

    @Override
    public StreamObserver<KeepAliveRequest> keepAlive(StreamObserver<KeepAliveResponse> call) {
        boolean isFirst = streams.incrementAndGet() == 1;
        var beats = new AtomicInteger();
        return new StreamObserver<>() {
            @Override
            public void onNext(KeepAliveRequest beat) {
                int number = beats.incrementAndGet();
                if (beat.getLeaseIdsList().equals(List.of("forced"))) {
                    call.onNext(lost("forced", "LEASE_LOST"));
                } else if (beat.getLeaseIdsList().equals(List.of("refused once"))) {
                    // The first stream refuses, then confirms, and then is silent; the others confirm a long time.
                    if (isFirst && number == 1) {
                        call.onNext(lost("refused once", "PERMISSION_DENIED"));
                    } else if (!isFirst || number == 2) {
                        call.onNext(KeepAliveResponse.newBuilder().setKept(KeepAliveResponse.Kept.newBuilder()
                                .setBeat(beat.getBeat()).addTtls(Times.wire(Times.seconds(isFirst ? 6 : 60)))).build());
                    }
                }
            }

            @Override
            public void onError(Throwable error) {}

            @Override
            public void onCompleted() {
                call.onCompleted();
            }
        };
    }

    private static KeepAliveResponse lost(String leaseId, String reason) {
        return KeepAliveResponse.newBuilder().setLost(
                KeepAliveResponse.Lost.newBuilder().setLeaseId(leaseId).setReason(reason).setCause("forced")).build();
    }

    @Test
    void aLeaseWhoseRenewalWasRefusedOnceIsKept() throws Exception {
        try (HeldLock lock = client.lock("refused once").ttl(Duration.ofSeconds(6)).acquire()) {
            while (lock.remaining().toSeconds() < 10) {
                lock.check();
                Thread.sleep(10);
            }
            assertEquals(2, streams.get());
        }
    }

    @Test
    void aLeaseThatIsLostUnrenewedIsReleased() throws Exception {
        var loss = new CompletableFuture<LeaseLostException>();
        client.lock("forced").ttl(Duration.ofSeconds(1)).acquire().onLost(Runnable::run, loss::complete);
        assertEquals("forced", loss.get(10, TimeUnit.SECONDS).lossCause());
        client.lock("unanswered").ttl(Duration.ofSeconds(1)).acquire();
        // What the server took away is not released, or it would be the first.
        assertEquals("unanswered", released.poll(10, TimeUnit.SECONDS));
    }

    private static void assertIncomplete(Executable call) {
        assertEquals("INCOMPLETE", assertThrows(FencepostException.class, call).reason());
    }

    @Test
    void anAnswerThatLacksALeaseIsAnErrorAndItsGrantsAreReleased() throws Exception {
        var minute = Duration.ofMinutes(1);
        assertIncomplete(client.lock("lacking").ttl(minute)::acquire);
        assertIncomplete(client.lock("lacking").ttl(minute).waitFor(minute)::tryAcquire);
        assertIncomplete(client.lockAll(List.of("a", "b")).ttl(minute)::acquire);
        assertEquals("b", released.poll(10, TimeUnit.SECONDS));
        assertIncomplete(client.election("lacking").campaign("")::acquire);
        assertIncomplete(() -> client.get("lacking"));
        assertIncomplete(() -> client.lock("a").ttl(minute).acquire().leaveFor(minute));
        client.close();
        assertNull(released.poll());
    }

    /** A store that remembers no requests takes each call of a wait for another one. */
    @Test
    void aWaitThatIsGrantedTwiceKeepsTheFirstGrant() throws Exception {
        Acquisition.handOver = Times.millis(300);
        try {
            var granted = client.lock("granted twice").ttl(Duration.ofMinutes(1)).waitFor(Duration.ofMinutes(1)).acquireAsync();
            var first = waits.poll(10, TimeUnit.SECONDS);
            var second = waits.poll(10, TimeUnit.SECONDS);
            assertNotNull(waits.poll(10, TimeUnit.SECONDS));
            assertEquals(1, requests.size());
            answer(first, grant("first"));
            assertEquals("first", granted.get(10, TimeUnit.SECONDS).lease.id);
            answer(second, grant("second"));
            assertEquals("second", released.poll(10, TimeUnit.SECONDS));
            // A call whose answer does not come is ended.
            waitEnded.get(10, TimeUnit.SECONDS);
        } finally {
            Acquisition.handOver = Times.seconds(45);
        }
    }

    private static AcquireResponse grant(String leaseId) {
        return AcquireResponse.newBuilder().setLease(granted(leaseId, Times.wire(Times.seconds(60)))).build();
    }

    @Test
    void theStreamOfAListenerThatFailsIsEnded() throws Exception {
        var watch = client.watch("x", Runnable::run, event -> {
            throw new IllegalStateException("of the listener");
        });
        watchEnded.get(10, TimeUnit.SECONDS);
        assertThrows(ExecutionException.class, () -> watch.ended().get(10, TimeUnit.SECONDS));
    }
}
