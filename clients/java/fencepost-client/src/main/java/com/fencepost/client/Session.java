package com.fencepost.client;

import com.fencepost.client.Command.Kind;
import com.fencepost.v1.ReleaseRequest;
import com.fencepost.v1.RenewRequest;
import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent.CommandResult;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * What a client has asked its servers for, and the leases that it holds. The {@link Carrier} sends it. Nothing is sent or
 * waited for while the session is locked, and nothing of the user runs then.
 */
final class Session {
    static final long CALL = Times.seconds(10);
    static final long RELEASE = Times.seconds(5);
    private static final System.Logger LOG = System.getLogger("com.fencepost.client");
    /** For the result of a wait after its end. */
    private static final long ATTEMPT = Times.seconds(5);
    /** For an acquire that was abandoned. A test shortens it. */
    static long undo = Times.seconds(15);

    final Settings settings;
    private final Carrier carrier;
    private final CompletableFuture<Void> idle = new CompletableFuture<>();

    // Guarded by this.
    /** Those without a result, in the order of their ids. */
    final Map<Long, Command<?>> pending = new LinkedHashMap<>();
    /** Those to be sent next. Renewals and releases wait for no acquires. */
    final Map<Kind, Deque<Command<?>>> queues = new EnumMap<>(Kind.class);
    final Map<String, Lease> held = new LinkedHashMap<>();
    private long lastId;
    private boolean isClosing;
    boolean isEnded;

    Session(Settings settings) {
        this.settings = settings;
        for (Kind kind : Kind.values()) {
            queues.put(kind, new ArrayDeque<>());
        }
        carrier = new Carrier(this);
    }

    // What callers do.

    /** Sends a command, on this stream and the next ones, until it has a result or its time is over. */
    synchronized <T> Command<T> send(Command<T> command) {
        if (isClosing) {
            command.done.completeExceptionally(new ClientClosedException());
            return command;
        }
        return add(command);
    }

    /** Sends an acquire; a wait of zero is a try. */
    Command<List<Lease>> acquire(SessionCommand.Builder message, int count, long wait) {
        long now = Times.now();
        var command = new Command<List<Lease>>(wait > 0 ? Kind.WAIT : Kind.CALL, message, this::granted);
        command.count = count;
        if (wait > 0) {
            command.waitEnd = now + wait;
            command.end = command.waitEnd + ATTEMPT;
        } else {
            command.end = now + CALL;
            command.tries = Math.max(Command.TRIES, settings.addresses.size());
        }
        return send(command);
    }

    /** Takes an acquire back, whose caller is gone, with all that it was or will be granted. */
    synchronized void abandon(Command<?> command) {
        if (pending.get(command.id) != command) {
            command.leases.forEach(this::giveBack);
            command.leases = List.of();
        } else if (!command.wasSent) {
            forget(command);
            command.done.cancel(false);
        } else if (!command.isAbandoned) {
            command.isAbandoned = true;
            command.end = Times.now() + undo;
            command.tries = 0;
            cancel(command);
            again(command);
        }
    }

    /** Releases a lease. */
    synchronized CompletableFuture<Void> release(Lease lease) {
        long left = lease.left();
        if (left <= 0) {
            return CompletableFuture.failedFuture(lease.loss());
        }
        held.remove(lease.id);
        lease.release();
        return add(releasing(lease, Math.min(RELEASE, left))).done;
    }

    private void giveBack(Lease lease) {
        held.remove(lease.id);
        lease.release();
        lease.keepUntil = 0;
        add(releasing(lease, RELEASE));
    }

    private static Command<Void> releasing(Lease lease, long limit) {
        var request = ReleaseRequest.newBuilder().setLeaseId(lease.id);
        if (lease.keepUntil > Times.now()) {
            request.setKeepFor(Times.wire(lease.keepUntil - Times.now()));
        }
        var release = new Command<Void>(Kind.RENEWAL, SessionCommand.newBuilder().setRelease(request), (result, sent) -> null);
        release.end = Times.now() + limit;
        return release;
    }

    /** Renews a lease for another TTL. A server never shortens one. */
    CompletableFuture<Void> extend(Lease lease, long ttl) {
        var request = RenewRequest.newBuilder().setLeaseId(lease.id).setTtl(Times.wire(ttl));
        var renew = new Command<Void>(Kind.RENEWAL, SessionCommand.newBuilder().setRenew(request), (result, command) -> {
            if (!result.getRenew().hasLease()) {
                throw FencepostException.incomplete();
            }
            lease.confirm(command.sent, Times.nanos(result.getRenew().getLease().getTtl()));
            carrier.lookBy(Math.min(lease.due, lease.tellAt()));
            return null;
        });
        renew.end = Times.now() + CALL;
        return send(renew).done;
    }

    /** Ends a lease that is still counted on. */
    synchronized void lose(Lease lease, String cause, String message) {
        held.remove(lease.id, lease);
        if (lease.renewal != null) {
            forget(lease.renewal);
        }
        var loss = new LeaseLostException(cause, message, null);
        if (!lease.lose(loss)) {
            return;
        }
        if (cause.equals("unrenewed") || cause.equals("closed")) { // The server may count it for longer.
            add(releasing(lease, RELEASE));
        }
        FencepostClient.CALLBACKS.execute(() -> {
            log(Level.WARNING, "lost the lease of " + lease.name + ", token " + lease.token + ": " + message);
            lease.lost.complete(loss);
        });
    }

    /** Renews a lease no more, which nobody can release. */
    synchronized void dropped(Lease lease) {
        if (held.remove(lease.id, lease)) {
            lease.release();
            local(SessionCommand.newBuilder().setDetach(SessionCommand.Detach.newBuilder().addLeaseIds(lease.id)));
            FencepostClient.CALLBACKS.execute(() -> log(Level.WARNING, "the lock " + lease.name + ", token " + lease.token
                    + ", is not renewed any more: it was dropped, or its thread ended, without a release"));
        }
    }

    /** Ends a watch. */
    synchronized void unwatch(Command<?> watch) {
        if (pending.get(watch.id) == watch) {
            forget(watch);
            cancel(watch);
        }
    }

    /** A call that sessions do not have, on the connection of the stream. */
    <Q, A> A unary(MethodDescriptor<Q, A> method, Q request) {
        return FencepostClient.join(CompletableFuture.supplyAsync(() -> {
            long end = Times.now() + CALL;
            for (int failed = 1;; failed++) {
                try {
                    return attempt(method, request, end);
                } catch (FencepostException error) {
                    long pause = Times.pause(failed, error.retryNanos());
                    if (!error.isTemporary() || Times.now() + pause >= end) {
                        throw error;
                    }
                    LockSupport.parkNanos(pause);
                }
            }
        }, FencepostClient.CALLBACKS));
    }

    private <Q, A> A attempt(MethodDescriptor<Q, A> method, Q request, long end) {
        ping(end);
        String server;
        ManagedChannel channel;
        synchronized (this) {
            Stream stream = carrier.stream;
            if (stream == null || stream.channel == null) {
                throw carrier.unanswered();
            }
            channel = stream.channel;
            server = stream.address.text();
        }
        try {
            var interceptor = MetadataUtils.newAttachHeadersInterceptor(Settings.headers(settings.token()));
            long limit = Math.min(ATTEMPT, Math.max(end - Times.now(), 1));
            return ClientCalls.blockingUnaryCall(io.grpc.ClientInterceptors.intercept(channel, interceptor), method,
                    CallOptions.DEFAULT.withDeadlineAfter(limit, TimeUnit.NANOSECONDS), request);
        } catch (Exception error) {
            throw FencepostException.of(error, server);
        }
    }

    /** The error of what no server has answered. */
    synchronized FencepostException unanswered() {
        return carrier.unanswered();
    }

    /** Cancels nothing, but its result shows that the stream is open. */
    void ping(long end) {
        var ping = new Command<Void>(Kind.CALL, probing(), (result, command) -> null);
        ping.end = end;
        FencepostClient.join(send(ping).done);
    }

    /** Ends all calls, releases all leases, and waits 5 s at most until that is done. */
    void close() {
        synchronized (this) {
            isClosing = true;
            for (Command<?> command : List.copyOf(pending.values())) {
                if (command.lease != null) {
                    forget(command);
                } else if (command.kind != Kind.RENEWAL && !command.isLocal()) {
                    if (command.count > 0) {
                        abandon(command);
                    } else {
                        unwatch(command);
                    }
                    command.done.completeExceptionally(new ClientClosedException());
                }
            }
            List.copyOf(held.values()).forEach(lease -> lose(lease, "closed", "the client was closed"));
            checkIdle();
        }
        idle.copy().completeOnTimeout(null, RELEASE, TimeUnit.NANOSECONDS).join();
        if (!idle.isDone()) {
            log(Level.WARNING, "no server confirmed the release of all locks");
        }
        end();
    }

    /** Ends what is left. */
    synchronized void end() {
        isClosing = true;
        isEnded = true;
        for (Command<?> command : List.copyOf(pending.values())) {
            forget(command);
            command.done.completeExceptionally(new ClientClosedException());
        }
        carrier.end();
    }

    // The commands.

    <T> Command<T> add(Command<T> command) {
        if (isEnded) {
            command.done.completeExceptionally(new ClientClosedException());
            return command;
        }
        command.id = ++lastId;
        command.message.setId(command.id);
        pending.put(command.id, command);
        enqueue(command);
        long end = command.waitEnd > 0 ? command.waitEnd : command.end;
        carrier.lookBy(Math.min(end, Times.now() + Carrier.LONGEST_TICK));
        return command;
    }

    /** Sends a command of this stream alone. */
    Command<Void> local(SessionCommand.Builder message) {
        return add(new Command<>(Kind.LOCAL, message, (result, command) -> null));
    }

    static SessionCommand.Builder probing() {
        return SessionCommand.newBuilder().setCancel(SessionCommand.Cancel.getDefaultInstance());
    }

    void enqueue(Command<?> command) {
        command.isQueued = true;
        command.retryAt = 0;
        queues.get(command.kind).add(command);
        carrier.need();
    }

    void again(Command<?> command) {
        if (pending.get(command.id) == command && command.sent == 0 && !command.isQueued) {
            enqueue(command);
        }
    }

    void forget(Command<?> command) {
        pending.remove(command.id, command);
        checkIdle();
    }

    private void checkIdle() {
        if (isClosing && pending.values().stream().allMatch(Command::isLocal)) {
            idle.complete(null);
        }
    }

    void cancel(Command<?> command) {
        if (command.sent > 0) {
            local(SessionCommand.newBuilder().setCancel(SessionCommand.Cancel.newBuilder().setId(command.id)));
        }
    }

    /** The leases of an acquire's result. They are renewed before its caller has them. */
    private List<Lease> granted(CommandResult result, Command<?> command) {
        var several = result.getAcquireAll().getLeasesList();
        var infos = result.getAcquire().hasLease() ? List.of(result.getAcquire().getLease()) : several;
        command.leases = infos.stream().map(info -> new Lease(this, info, command.sent)).toList();
        for (Lease lease : command.leases) {
            held.put(lease.id, lease);
            carrier.lookBy(Math.min(lease.due, lease.tellAt()));
        }
        if (command.isAbandoned || infos.size() != command.count) {
            abandon(command);
            throw FencepostException.incomplete();
        }
        return command.leases;
    }

    void result(Stream from, CommandResult result) {
        Command<?> command = from.answered(result.getId());
        if (command == null) {
            return;
        }
        if (!queues.get(command.kind).isEmpty()) {
            carrier.wake();
        }
        if (pending.get(command.id) != command) { // It was given up.
            command.isAbandoned = true;
            if (command.count > 0 && !result.hasError()) {
                command.answer(result);
            }
            return;
        }
        if (result.hasError()) {
            command.sent = 0;
            failed(from, command, FencepostException.of(result.getError()));
            return;
        }
        if (command.isLocal()) {
            from.trip = Math.max(from.heard - command.sent, from.trip / 2);
        } else {
            from.hasServed = true;
        }
        forget(command);
        command.answer(result);
    }

    /** Decides what becomes of a command that the server refused. */
    private void failed(Stream from, Command<?> command, FencepostException error) {
        long now = Times.now();
        boolean isMissing = command.lease != null && held.get(command.lease.id) != command.lease;
        if (error instanceof UnauthenticatedException) { // With the next stream comes the token of that time.
            from.end(error);
            return;
        }
        if (error.reason().equals("DRAINING") || from.drains > 0 && error.reason().equals("INVALID_FIELD")) {
            from.drains = from.drains > 0 ? from.drains : now; // The next stream sends it.
            return;
        }
        if (command.lease != null && (isMissing || error instanceof LeaseLostException)) {
            forget(command);
            if (error instanceof LeaseLostException lost && !isMissing) {
                lose(command.lease, lost.lossCause(), "the server says " + lost.lossCause());
            }
            return;
        }
        if (error.reason().equals("SUPERSEDED") && !command.isAbandoned && !command.isSuperseded) {
            command.isSuperseded = true; // By the same command of an earlier stream.
        } else if ("wait".equals(error.details().get("field")) && command.isWait() && command.longest > Times.seconds(60)) {
            command.longest /= 60;
        } else if (error.code() == Status.Code.CANCELLED && command.watch != null // Its messages were not read.
                || error instanceof WaitTimeoutException && command.isWait() && command.waitEnd > now + Times.millis(50)) {
            command.retryAt = 0;
        } else {
            boolean mayHelp = error.isTemporary() || error.reason().equals("QUEUE_FULL") && command.isWait();
            boolean isRepeated = command.lease != null || command.tries == 0 && !command.isLocal() && mayHelp
                    && error.code() != Status.Code.CANCELLED;
            command.retryAt = now + Times.pause(++command.failures, error.retryNanos());
            if (!isRepeated || command.retryAt >= (command.isWait() ? command.waitEnd : command.end)) {
                over(command, error);
            } else {
                carrier.lookBy(command.retryAt);
            }
            return;
        }
        again(command);
    }

    /** Ends a command with an error. What an acquire may have been granted is given back. */
    void over(Command<?> command, FencepostException error) {
        if (command.count > 0 && command.wasSent && !command.isAbandoned && error.isUnknown()) {
            abandon(command);
        } else {
            forget(command);
        }
        command.done.completeExceptionally(error);
    }

    /** Whether nothing is to be sent of it: it is over, or so is the lease that it renews. */
    boolean isStale(Command<?> command) {
        boolean isMissing = command.lease != null && held.get(command.lease.id) != command.lease;
        if (isMissing) {
            forget(command);
        }
        return isMissing || pending.get(command.id) != command;
    }

    /** A log handler that fails ends nothing. */
    static void log(Level level, String message) {
        try {
            LOG.log(level, message);
        } catch (RuntimeException | Error failed) {
            // There is nowhere to tell it.
        }
    }
}
