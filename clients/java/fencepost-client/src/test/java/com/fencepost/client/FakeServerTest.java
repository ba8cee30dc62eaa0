package com.fencepost.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.v1.AcquireAllResponse;
import com.fencepost.v1.AcquireResponse;
import com.fencepost.v1.GetLockResponse;
import com.fencepost.v1.LockServiceGrpc.LockServiceImplBase;
import com.fencepost.v1.LockState;
import com.fencepost.v1.ReleaseResponse;
import com.fencepost.v1.RenewResponse;
import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent;
import com.fencepost.v1.SessionEvent.CommandError;
import com.fencepost.v1.SessionEvent.CommandResult;
import com.fencepost.v1.SessionEvent.Lost;
import com.fencepost.v1.SessionEvent.Watched;
import com.fencepost.v1.SessionRequest;
import com.fencepost.v1.SessionResponse;
import com.fencepost.v1.WatchLockResponse;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Answers that a real server gives only in rare moments. The name of a lock says what becomes of it. */
@Timeout(40)
class FakeServerTest extends LockServiceImplBase {
    private static final Duration MINUTE = Duration.ofMinutes(1);

    private final BlockingQueue<String> released = new LinkedBlockingQueue<>();
    /** Those of "silent" and the watches. */
    private final BlockingQueue<SessionCommand> unanswered = new LinkedBlockingQueue<>();
    private final BlockingQueue<SessionCommand> cancels = new LinkedBlockingQueue<>();
    private final AtomicReference<StreamObserver<SessionResponse>> stream = new AtomicReference<>();
    private volatile CommandError renewalError;
    private volatile boolean isReleaseUnsupported;
    private Server server;
    private FencepostClient client;

    @BeforeEach
    void start() throws Exception {
        server = NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0))
                .addService(this).build().start();
        client = FencepostClient.builder().address("127.0.0.1:" + server.getPort()).build();
    }

    @AfterEach
    void stop() {
        server.shutdownNow();
        client.close();
    }

    @Override
    public StreamObserver<SessionRequest> session(StreamObserver<SessionResponse> call) {
        stream.set(call);
        return new StreamObserver<>() {
            @Override
            public void onNext(SessionRequest request) {
                request.getCommandsList().forEach(command -> obey(command));
            }

            @Override
            public void onError(Throwable error) {}

            @Override
            public void onCompleted() {
                call.onCompleted();
            }
        };
    }

    private void obey(SessionCommand command) {
        var result = CommandResult.newBuilder().setId(command.getId());
        switch (command.getCommandCase()) {
            case ACQUIRE -> {
                var request = command.getAcquire().getRequest();
                if (request.getName().startsWith("silent")) {
                    unanswered.add(command);
                    return;
                }
                result.setAcquire(request.getName().equals("lacking") ? AcquireResponse.getDefaultInstance()
                        : AcquireResponse.newBuilder().setLease(granted(request.getName(), request.getTtl())).build());
            }
            case ACQUIRE_ALL -> {
                var request = command.getAcquireAll().getRequest();
                var all = AcquireAllResponse.newBuilder();
                request.getLocksList().stream().skip(1).forEach(lock -> all.addLeases(granted(lock.getName(), request.getTtl())));
                result.setAcquireAll(all);
            }
            case CAMPAIGN -> result.setAcquire(AcquireResponse.getDefaultInstance());
            case RENEW -> {
                if (command.getRenew().getLeaseId().equals("unanswered")) {
                    return;
                }
                var ttl = command.getRenew().hasTtl() ? command.getRenew().getTtl() : Times.wire(Times.seconds(60));
                result.setRenew(RenewResponse.newBuilder().setLease(granted(command.getRenew().getLeaseId(), ttl)));
                if (renewalError != null) {
                    result.setError(renewalError);
                    renewalError = null;
                }
            }
            case RELEASE -> {
                if (command.getRelease().getLeaseId().startsWith("stuck")) {
                    unanswered.add(command);
                    return;
                }
                released.add(command.getRelease().getLeaseId());
                if (isReleaseUnsupported && command.getRelease().hasKeepFor()) {
                    result.setError(CommandError.newBuilder().setCode(Status.Code.FAILED_PRECONDITION.value()).setReason("UNSUPPORTED"));
                } else {
                    result.setRelease(ReleaseResponse.getDefaultInstance());
                }
            }
            case GET_LOCK -> {
                boolean isLacking = command.getGetLock().getName().equals("lacking");
                result.setGetLock(isLacking ? GetLockResponse.getDefaultInstance()
                        : GetLockResponse.newBuilder().setLock(LockState.getDefaultInstance()).build());
            }
            case WATCH_LOCK -> {
                unanswered.add(command);
                return;
            }
            case CANCEL -> {
                if (command.getCancel().getId() > 0) {
                    cancels.add(command);
                }
                result.setCancel(SessionEvent.Cancelled.getDefaultInstance());
            }
            default -> result.setOpen(SessionEvent.OpenAccepted.getDefaultInstance());
        }
        say(SessionEvent.newBuilder().setResult(result));
    }

    private void say(SessionEvent.Builder... events) {
        var message = SessionResponse.newBuilder();
        for (var event : events) {
            message.addEvents(event);
        }
        synchronized (this) {
            stream.get().onNext(message.build());
        }
    }

    private static com.fencepost.v1.Lease.Builder granted(String name, com.google.protobuf.Duration ttl) {
        return com.fencepost.v1.Lease.newBuilder().setLeaseId(name).setName(name).setFencingToken(1).setTtl(ttl);
    }

    private static SessionEvent.Builder failed(long id, Status.Code code, String reason) {
        return SessionEvent.newBuilder().setResult(CommandResult.newBuilder().setId(id)
                .setError(CommandError.newBuilder().setCode(code.value()).setReason(reason)));
    }

    private static <T> T next(BlockingQueue<T> queue) throws InterruptedException {
        return Optional.ofNullable(queue.poll(15, TimeUnit.SECONDS)).orElseThrow();
    }

    @Test
    void aLeaseWhoseRenewalWasRefusedOnceIsKept() throws Exception {
        renewalError = CommandError.newBuilder().setCode(Status.Code.PERMISSION_DENIED.value()).build();
        try (HeldLock lock = client.lock("refused once").ttl(Duration.ofSeconds(6)).acquire()) {
            while (lock.remaining().toSeconds() < 10) {
                lock.check();
                Thread.sleep(10);
            }
        }
    }

    @Test
    void aLeaseThatIsLostUnrenewedIsReleased() throws Exception {
        var loss = new CompletableFuture<LeaseLostException>();
        client.lock("forced").ttl(Duration.ofSeconds(1)).acquire().onLost(Runnable::run, loss::complete);
        say(SessionEvent.newBuilder().setLost(Lost.newBuilder().setLeaseId("forced").setReason("LEASE_LOST").setCause("forced")));
        assertEquals("forced", loss.get(10, TimeUnit.SECONDS).lossCause());
        HeldLock lock = client.lock("unanswered").ttl(Duration.ofSeconds(1)).acquire();
        // What the server took away is not released, or it would be the first.
        assertEquals("unanswered", next(released));
        assertFalse(lock.isHeld());
    }

    private static void assertIncomplete(Executable call) {
        assertEquals("INCOMPLETE", assertThrows(FencepostException.class, call).reason());
    }

    @Test
    void anAnswerThatLacksALeaseIsAnErrorAndItsGrantsAreReleased() throws Exception {
        assertIncomplete(client.lock("lacking").ttl(MINUTE)::acquire);
        assertIncomplete(client.lock("lacking").ttl(MINUTE).waitFor(MINUTE)::tryAcquire);
        assertIncomplete(client.lockAll(List.of("a", "b")).ttl(MINUTE)::acquire);
        assertEquals("b", next(released));
        assertIncomplete(client.election("lacking").campaign("")::acquire);
        assertIncomplete(() -> client.get("lacking"));
        client.close();
        assertNull(released.poll());
    }

    @Test
    void aStoreThatCannotKeepAReleasedLockTakenKeepsItsLease() throws Exception {
        isReleaseUnsupported = true;
        try (HeldLock lock = client.lock("kept").ttl(MINUTE).atLeast(Duration.ofSeconds(10)).acquire()) {
            lock.check();
        }
        assertEquals("kept", next(released));
    }

    @Test
    void aResultThatComesTooLateMakesRoomForOtherCommands() throws Exception {
        var locks = new ArrayList<HeldLock>();
        for (int i = 0; i < Command.Kind.RENEWAL.limit; i++) {
            locks.add(client.lock("stuck-" + i).ttl(Duration.ofSeconds(2)).acquire());
        }
        locks.parallelStream().map(HeldLock::release).toList()
                .forEach(release -> assertThrows(java.util.concurrent.CompletionException.class, release::join));
        for (int i = 0; i < Command.Kind.RENEWAL.limit; i++) {
            say(SessionEvent.newBuilder().setResult(CommandResult.newBuilder().setId(next(unanswered).getId())
                    .setRelease(ReleaseResponse.getDefaultInstance())));
        }
        client.lock("after").ttl(MINUTE).acquire().close();
    }

    @Test
    void abandonedWaitsGiveTheirPlaceToLaterOnes() throws Exception {
        // As many as may wait, and one more that waits here.
        var waits = new ArrayList<CompletableFuture<HeldLock>>();
        for (int i = 0; i < Command.Kind.WAIT.limit; i++) {
            waits.add(client.lock("silent-" + i).waitFor(MINUTE).acquireAsync());
        }
        var sent = new ArrayList<SessionCommand>();
        while (sent.size() < Command.Kind.WAIT.limit) {
            sent.add(next(unanswered));
        }
        var dead = client.lock("dead").waitFor(MINUTE).acquireAsync();
        var live = client.lock("live").ttl(MINUTE).waitFor(MINUTE).acquireAsync();
        waits.forEach(wait -> wait.cancel(false));
        dead.cancel(false);
        for (var command : sent) {
            next(cancels);
            say(failed(command.getId(), Status.Code.CANCELLED, ""));
        }
        live.get(10, TimeUnit.SECONDS).close();
        assertEquals("live", next(released));
    }

    @Test
    void theCancelOfADependentFutureLeavesTheQueue() throws Exception {
        var dependent = client.lock("silent").waitForever().acquireAsync().thenApply(HeldLock::token).thenAccept(token -> {});
        long id = next(unanswered).getId();
        assertTrue(dependent.cancel(true));
        assertEquals(id, next(cancels).getCancel().getId());
        // A grant that crosses the cancel is given back.
        say(SessionEvent.newBuilder().setResult(CommandResult.newBuilder().setId(id)
                .setAcquire(AcquireResponse.newBuilder().setLease(granted("crossing", Times.wire(Times.seconds(60)))))));
        assertEquals("crossing", next(released));
        client.lock("silent").waitForever().acquireAsync().thenApply(HeldLock::token).orTimeout(10, TimeUnit.MILLISECONDS);
        assertEquals(next(unanswered).getId(), next(cancels).getCancel().getId());
    }

    @Test
    void aGrantThatComesAfterItsAcquireWasGivenUpIsReleased() throws Exception {
        long before = Session.undo;
        Session.undo = Times.seconds(1);
        try {
            var acquiring = client.lock("silent").waitForever().acquireAsync();
            long id = next(unanswered).getId();
            acquiring.cancel(false);
            next(cancels);
            Thread.sleep(2500);
            say(SessionEvent.newBuilder().setResult(CommandResult.newBuilder().setId(id)
                    .setAcquire(AcquireResponse.newBuilder().setLease(granted("late", Times.wire(Times.seconds(60)))))));
            assertEquals("late", next(released));
        } finally {
            Session.undo = before;
        }
    }

    @Test
    void aWatchThatWasNotReadBeginsAnew() throws Exception {
        var blocked = new CompletableFuture<Void>();
        var seen = new LinkedBlockingQueue<String>();
        try (var watch = client.watch("x", Runnable::run, event -> {
            blocked.join();
            seen.add(event.hasState() ? "state" : "change");
            throw new IllegalStateException("of the listener, which ends nothing");
        })) {
            long id = next(unanswered).getId();
            var change = SessionEvent.newBuilder().setWatched(Watched.newBuilder().setId(id).setMessage(WatchLockResponse.newBuilder()
                    .setChange(com.fencepost.v1.LockChange.getDefaultInstance())));
            for (int i = 0; i < 1100; i++) {
                say(change);
            }
            assertEquals(id, next(cancels).getCancel().getId());
            say(change, failed(id, Status.Code.CANCELLED, ""));
            assertEquals(id, next(unanswered).getId());
            say(SessionEvent.newBuilder().setWatched(Watched.newBuilder().setId(id).setMessage(WatchLockResponse.newBuilder()
                    .setState(LockState.getDefaultInstance()))), change);
            blocked.complete(null);
            assertEquals("change", next(seen)); // The one that was being read.
            assertEquals("state", next(seen));
            assertEquals("change", next(seen));
            assertFalse(watch.ended().isDone());
        }
    }

    @Test
    void aCommandThatIsSupersededOnTheNewestStreamIsSentOnceMore() throws Exception {
        var acquiring = client.lock("silent").waitForever().acquireAsync();
        long id = next(unanswered).getId();
        say(failed(id, Status.Code.ABORTED, "SUPERSEDED"));
        assertEquals(id, next(unanswered).getId());
        say(failed(id, Status.Code.ABORTED, "SUPERSEDED"));
        var error = assertThrows(java.util.concurrent.ExecutionException.class, acquiring::get).getCause();
        assertEquals("SUPERSEDED", ((FencepostException) error).reason());
    }
}
