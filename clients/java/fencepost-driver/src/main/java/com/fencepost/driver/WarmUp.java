package com.fencepost.driver;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.FencepostException;
import com.fencepost.client.HeldLock;
import com.fencepost.v1.AcquireResponse;
import com.fencepost.v1.Lease;
import com.fencepost.v1.LockServiceGrpc.LockServiceImplBase;
import com.fencepost.v1.ReleaseResponse;
import com.fencepost.v1.RenewResponse;
import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent;
import com.fencepost.v1.SessionEvent.CommandResult;
import com.fencepost.v1.SessionRequest;
import com.fencepost.v1.SessionResponse;
import com.google.protobuf.Duration;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/** Loads and compiles the client, because a cold one on a busy machine takes longer to renew than a lease of 3 s lives. */
final class WarmUp extends LockServiceImplBase {
    private static final Lease LEASE = Lease.newBuilder().setLeaseId("warm-up")
            .setTtl(Duration.newBuilder().setNanos(100_000_000)).build();
    private final Semaphore renewals = new Semaphore(0);

    static void run() throws IOException, InterruptedException {
        var service = new WarmUp();
        var server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0)).addService(service).build().start();
        try (var client = FencepostClient.builder().address("127.0.0.1:" + server.getPort()).build()) {
            for (int i = 0; i < 20; i++) {
                try (HeldLock lock = client.lock("warm-up").acquire()) {
                    lock.check();
                    service.renewals.tryAcquire(100, TimeUnit.MILLISECONDS);
                } catch (FencepostException slow) {
                    continue; // Which is why it is done.
                }
            }
        }
        server.shutdownNow();
    }

    @Override
    public StreamObserver<SessionRequest> session(StreamObserver<SessionResponse> call) {
        return new StreamObserver<>() {
            @Override
            public void onNext(SessionRequest request) {
                var answer = SessionResponse.newBuilder();
                request.getCommandsList().forEach(command -> answer.addEvents(SessionEvent.newBuilder().setResult(result(command))));
                call.onNext(answer.build());
            }

            @Override
            public void onError(Throwable error) {}

            @Override
            public void onCompleted() {
                call.onCompleted();
            }
        };
    }

    private CommandResult.Builder result(SessionCommand command) {
        var result = CommandResult.newBuilder().setId(command.getId());
        return switch (command.getCommandCase()) {
            case ACQUIRE -> result.setAcquire(AcquireResponse.newBuilder().setLease(LEASE));
            case RENEW -> {
                renewals.release();
                yield result.setRenew(RenewResponse.newBuilder().setLease(LEASE));
            }
            default -> result.setRelease(ReleaseResponse.getDefaultInstance());
        };
    }
}
