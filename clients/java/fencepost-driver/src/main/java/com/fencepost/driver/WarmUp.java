package com.fencepost.driver;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.HeldLock;
import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.AcquireResponse;
import com.fencepost.v1.KeepAliveRequest;
import com.fencepost.v1.KeepAliveResponse;
import com.fencepost.v1.KeepAliveResponse.Ask;
import com.fencepost.v1.KeepAliveResponse.Kept;
import com.fencepost.v1.Lease;
import com.fencepost.v1.LockServiceGrpc.LockServiceImplBase;
import com.fencepost.v1.ReleaseRequest;
import com.fencepost.v1.ReleaseResponse;
import com.google.protobuf.Duration;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.concurrent.Semaphore;

/** Loads and compiles the client, because a cold one on a busy machine takes longer to renew than a lease of 3 s lives. */
final class WarmUp extends LockServiceImplBase {
    private static final Duration TTL = Duration.newBuilder().setSeconds(60).build();
    private final Semaphore beats = new Semaphore(0);

    static void run() throws IOException, InterruptedException {
        var service = new WarmUp();
        var server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0)).addService(service).build().start();
        try (var client = FencepostClient.builder().address("127.0.0.1:" + server.getPort()).build()) {
            for (int i = 0; i < 20; i++) {
                HeldLock lock = client.lock("warm-up").acquire();
                service.beats.acquire();
                lock.close();
            }
        }
        server.shutdownNow();
    }

    private static <A> void answer(StreamObserver<A> call, A message) {
        call.onNext(message);
        call.onCompleted();
    }

    @Override
    public void acquire(AcquireRequest request, StreamObserver<AcquireResponse> call) {
        answer(call, AcquireResponse.newBuilder().setLease(Lease.newBuilder().setTtl(TTL)).build());
    }

    @Override
    public void release(ReleaseRequest request, StreamObserver<ReleaseResponse> call) {
        answer(call, ReleaseResponse.getDefaultInstance());
    }

    @Override
    public StreamObserver<KeepAliveRequest> keepAlive(StreamObserver<KeepAliveResponse> call) {
        return new StreamObserver<>() {
            @Override
            public void onNext(KeepAliveRequest beat) {
                beats.release();
                call.onNext(KeepAliveResponse.newBuilder().setKept(Kept.newBuilder().setBeat(beat.getBeat()).addTtls(TTL)).build());
                call.onNext(KeepAliveResponse.newBuilder().setAsk(Ask.getDefaultInstance()).build());
            }

            @Override
            public void onError(Throwable error) {}

            @Override
            public void onCompleted() {}
        };
    }
}
