package com.fencepost.client;

import com.fencepost.client.Command.Kind;
import com.fencepost.v1.RenewRequest;
import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent;
import com.fencepost.v1.SessionRequest;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;

/**
 * Carries a session over one {@link Stream} after the other: to one server at a time, and to the next address over a new
 * connection when that one breaks off or is silent. A new stream attaches the leases again, and sends each command that has
 * no result once more, with its request id: callers see nothing of it.
 *
 * <p>Its thread sends and looks at the clock. All else runs while the session is locked, or says so.
 */
final class Carrier {
    /** Timers stand still while the machine is suspended. */
    static final long LONGEST_TICK = Times.millis(500);
    /** Renewals that are due together are one message. */
    private static final long SHORTEST_TICK = Times.millis(5);
    /** Without a confirmation, of a long lease whose renewal is due. */
    private static final long LONGEST_SILENCE = Times.seconds(45);
    /** For a bearer token that was good: its file may be replaced a little later. */
    private static final long TOKEN_GRACE = Times.seconds(5);
    /** For how long a server keeps what waits after a stream has broken off. */
    private static final long GRACE = Times.seconds(10);
    private static final int MESSAGE_COMMANDS = 500;
    private static final int MESSAGE_BYTES = 48 << 10;
    /** Of one command, which fails alone: the server would end the stream. */
    private static final int COMMAND_BYTES = 60 << 10;

    final Session session;
    final Settings settings;
    private final Thread thread = FencepostClient.daemons("fencepost-session").newThread(this::run);

    private final String id = UUID.randomUUID().toString();

    // Guarded by the session.
    Stream stream;
    private long streams;
    private int address;
    private int failures;
    private long notBefore;
    /** How the last stream ended. */
    private FencepostException last;
    /** The token of the last stream that worked, and when tokens were refused first since then. */
    private String accepted;
    private final Map<String, Long> refused = new HashMap<>();
    /** When the thread looks at the clock next. */
    private long tick = Times.FOREVER;

    Carrier(Session session) {
        this.session = session;
        settings = session.settings;
        thread.start();
    }

    /** There is something to send. */
    void need() {
        if (stream == null) {
            lookBy(notBefore);
        }
        wake();
    }

    void lookBy(long at) {
        if (at < tick) {
            tick = at;
            wake();
        }
    }

    void wake() {
        LockSupport.unpark(thread);
    }

    void end() {
        if (stream != null) {
            stream.end(new ClientClosedException());
        }
        wake();
    }

    /** The error of a command without a result. */
    FencepostException unanswered() {
        boolean isConnected = stream != null && stream.opened > 0;
        return last != null && !isConnected ? last : UnavailableException.late();
    }

    /** Sends what there is to send, as one message. */
    private boolean flush() {
        Stream to;
        SessionRequest message;
        synchronized (session) {
            to = stream;
            message = to == null || !to.isWritable() ? SessionRequest.getDefaultInstance() : message(to);
        }
        if (message.getCommandsCount() > 0) {
            to.send(message);
        }
        return message.getCommandsCount() > 0;
    }

    private SessionRequest message(Stream to) {
        var message = SessionRequest.newBuilder();
        long now = Times.now();
        int size = 0;
        for (Kind kind : Kind.values()) {
            Deque<Command<?>> queue = session.queues.get(kind);
            while (!queue.isEmpty() && to.counts[kind.ordinal()] < kind.limit && message.getCommandsCount() < MESSAGE_COMMANDS) {
                Command<?> command = queue.peek();
                if (session.isStale(command)) {
                    queue.remove();
                    continue;
                }
                SessionCommand prepared = command.prepare(now);
                int bytes = prepared.getSerializedSize() + 8;
                size += bytes;
                if (bytes <= COMMAND_BYTES && size > MESSAGE_BYTES && message.getCommandsCount() > 0) {
                    return message.build();
                }
                queue.remove();
                command.isQueued = false;
                if (bytes > COMMAND_BYTES) {
                    session.over(command, new FencepostException(Status.Code.INVALID_ARGUMENT, "INVALID_FIELD", "the request is too large", null));
                    continue;
                }
                command.sent = now;
                command.wasSent = true;
                if (command.watch != null) {
                    command.watch.begins();
                }
                to.sent(command, now);
                message.addCommands(prepared);
            }
        }
        return message.build();
    }

    /** The first commands of a stream: who this is, and the leases. Then come those without a result. */
    boolean greet(Stream opening) {
        synchronized (session) {
            if (session.isEnded || opening.isOver) {
                return false;
            }
            Deque<Command<?>> queue = session.queues.get(Kind.LOCAL);
            var others = List.copyOf(queue);
            queue.clear();
            String version = Session.class.getPackage().getImplementationVersion();
            session.local(SessionCommand.newBuilder().setOpen(SessionCommand.Open.newBuilder()
                    .setClientName("fencepost-java").setClientVersion(version == null ? "" : version)
                    .setSessionId(id).setNumber(streams).setGrace(Times.wire(GRACE))));
            for (Lease lease : session.held.values()) {
                var attach = SessionCommand.Attach.newBuilder().addLeaseIds(lease.id);
                session.local(SessionCommand.newBuilder().setAttach(attach)).lease = lease;
            }
            queue.addAll(others);
            return true;
        }
    }

    void receive(Stream from, List<SessionEvent> events) {
        synchronized (session) {
            if (from != stream) {
                return;
            }
            from.heard = Times.now();
            if (from.opened == 0) {
                from.opened = from.heard;
                accepted = from.token;
                refused.clear();
            }
            for (SessionEvent event : events) {
                event(from, event);
            }
        }
    }

    private void event(Stream from, SessionEvent event) {
        switch (event.getEventCase()) {
            case RESULT -> session.result(from, event.getResult());
            case LOST -> {
                Lease lease = session.held.get(event.getLost().getLeaseId());
                if (lease != null && event.getLost().getReason().equals("LEASE_LOST")) { // Others live until their end.
                    session.lose(lease, event.getLost().getCause(), "the server says " + event.getLost().getCause());
                }
            }
            case DRAINING -> from.drains = from.drains > 0 ? from.drains : from.heard;
            case WATCHED -> watched(event.getWatched().getId(), event);
            case OBSERVED -> watched(event.getObserved().getId(), event);
            default -> { } // Each lease is renewed when that is due, so that no other one is: an ask needs no answer.
        }
    }

    private void watched(long id, SessionEvent event) {
        Command<?> command = session.pending.get(id);
        if (command != null && command.watch != null) {
            command.failures = 0;
            if (!command.watch.add(event)) {
                session.cancel(command);
            }
        }
    }

    /** Prepares for the next stream. This may block, and runs apart. */
    void ended(Stream ended, FencepostException why) {
        Address to = settings.addresses.get(address);
        var error = Settings.explained(why, ended.address);
        boolean isRefusal = error instanceof UnauthenticatedException;
        boolean isRefused = isRefusal && isRefused(ended.token);
        synchronized (session) {
            if (session.isEnded) {
                return;
            }
            boolean wasGood = ended.hasServed || ended.opened > 0 && Times.now() > ended.opened + Times.seconds(1);
            failures = wasGood ? 1 : failures + 1;
            last = error;
            stream = null;
            boolean isFinal = error.reason().equals("TLS") ? failures >= settings.addresses.size()
                    : isRefusal ? isRefused : !error.isTemporary();
            session.queues.values().forEach(Deque::clear);
            for (Command<?> command : List.copyOf(session.pending.values())) {
                command.sent = 0;
                command.isQueued = false;
                if (command.isLocal() || session.isStale(command)) {
                    session.forget(command);
                } else if (command.tries == 1 || isFinal && command.lease == null && !command.isAbandoned) {
                    session.over(command, error);
                }
                command.tries -= command.tries > 0 ? 1 : 0;
            }
            address = isRefusal ? address : (address + 1) % settings.addresses.size();
            to = settings.addresses.get(address);
            long pause = session.held.values().stream().mapToLong(lease -> lease.ttl / 10).min().orElse(Times.FOREVER);
            boolean isPaused = failures >= Math.max(2, settings.addresses.size()) || error.retryNanos() > 0;
            notBefore = isPaused ? Times.now() + Math.min(pause, Times.pause(failures - 1, error.retryNanos())) : 0;
            session.pending.values().stream().filter(command -> !command.isQueued && command.retryAt == 0).forEach(session::enqueue);
            lookBy(notBefore);
        }
        if (ended.opened > 0 || to != ended.address) {
            Session.log(Level.WARNING, "going on with a new connection to " + to.text() + ", because: " + error.getMessage());
        }
    }

    /** Whether a refused token is the one that is to be sent now. */
    private boolean isRefused(String token) {
        String current = null;
        try {
            current = settings.token();
        } catch (Exception unknown) {
            // The next stream needs one too, and says why there is none.
        }
        synchronized (session) {
            refused.putIfAbsent(token, Times.now());
            boolean isGood = token.equals(accepted) && Times.now() < refused.get(token) + TOKEN_GRACE;
            // A function may return another one each time.
            return token.equals(current) && !isGood || refused.size() >= Command.TRIES;
        }
    }

    // The clock.

    private void run() {
        while (true) {
            long wait;
            try {
                if (flush()) {
                    continue;
                }
                synchronized (session) {
                    if (session.isEnded) {
                        return;
                    }
                    long now = Times.now();
                    if (now >= tick) {
                        tick = step(now);
                        continue; // It may have left something to send.
                    }
                    wait = tick - now;
                }
            } catch (RuntimeException | Error fault) {
                Session.log(Level.ERROR, "a step of the session failed: " + fault);
                wait = SHORTEST_TICK;
            }
            LockSupport.parkNanos(this, wait);
        }
    }

    /** Does what is due, and returns when the next step is. */
    private long step(long now) {
        if (stream != null && now - tick > Times.seconds(1)) {
            stream.stood(now); // The process was stopped: the server was not silent.
        }
        long next = now + LONGEST_TICK;
        long shortest = Times.FOREVER;
        long stalled = Times.FOREVER;
        for (Lease lease : List.copyOf(session.held.values())) {
            if (now >= lease.tellAt()) {
                session.lose(lease, "unrenewed", "no renewal of " + lease.name + " was confirmed in time");
                continue;
            }
            if (lease.thread != null && !lease.thread.isAlive()) {
                session.dropped(lease);
                continue;
            }
            if (lease.renewal == null && lease.due <= now) {
                renew(lease);
            }
            next = Math.min(next, lease.renewal == null ? Math.min(lease.due, lease.tellAt()) : lease.tellAt());
            shortest = Math.min(shortest, lease.ttl);
            long late = (long) (lease.ttl * Lease.RENEWAL) + LONGEST_SILENCE;
            stalled = Math.min(stalled, lease.confirmed + Math.min((lease.end() - lease.confirmed) / 2, late));
        }
        for (Command<?> command : List.copyOf(session.pending.values())) {
            boolean isLate = command.waitEnd > 0 && command.waitEnd <= now && !command.wasSent
                    && !(stream != null && stream.isFresh(now));
            if (command.end <= now || isLate) {
                session.over(command, unanswered());
                continue;
            }
            if (command.retryAt > 0 && command.retryAt <= now) {
                command.retryAt = 0;
                session.again(command);
            }
            next = Math.min(next, command.wasSent || command.waitEnd == 0 ? command.end : command.waitEnd);
            next = command.retryAt > 0 ? Math.min(next, command.retryAt) : next;
        }
        if (stream != null) {
            next = Math.min(next, look(now, shortest, stalled));
        } else if (session.pending.isEmpty() && session.held.isEmpty()) {
            return Times.FOREVER;
        } else if (notBefore <= now) {
            streams++;
            stream = new Stream(this, settings.addresses.get(address));
            FencepostClient.CALLBACKS.execute(stream::open);
        } else {
            next = Math.min(next, notBefore);
        }
        return session.pending.isEmpty() && session.held.isEmpty() ? Times.FOREVER : Math.max(next, now + SHORTEST_TICK);
    }

    private long look(long now, long shortest, long stalled) {
        long due = stream.stuckAt(shortest, stalled, settings.addresses.size() == 1);
        long quiet = stream.quietAt(shortest);
        if (due <= now) {
            stream.end(UnavailableException.late());
            return Times.FOREVER;
        }
        if (quiet > now) {
            return Math.min(due, quiet);
        }
        stream.probe = session.local(Session.probing());
        stream.probe.end = stream.probeEnd(now);
        return Math.min(due, stream.probe.end);
    }

    private void renew(Lease lease) {
        var message = SessionCommand.newBuilder().setRenew(RenewRequest.newBuilder().setLeaseId(lease.id));
        lease.renewal = session.add(new Command<Void>(Kind.RENEWAL, message, (result, command) -> {
            lease.renewal = null;
            long ttl = Times.nanos(result.getRenew().getLease().getTtl());
            if (ttl > 0) {
                lease.confirm(command.sent, ttl);
            } else { // The answer lacks it.
                lease.due = Times.now() + LONGEST_TICK;
            }
            lookBy(Math.min(lease.due, lease.tellAt()));
            return null;
        }));
        lease.renewal.lease = lease;
    }
}
