package com.fencepost.client;

import com.fencepost.client.Connections.Connection;
import com.fencepost.v1.KeepAliveRequest;
import com.fencepost.v1.KeepAliveResponse;
import com.fencepost.v1.LockServiceGrpc;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * Keeps leases by KeepAlive streams, each with at most 1,000 leases and 48 KiB of ids, and with similar TTLs, because the
 * shortest one decides how often all of them are renewed.
 *
 * <p>The timer's thread alone opens streams and sends beats, and holds no lock then. A stream that has not confirmed a
 * lease for half of its TTL gets a successor over a new connection; until that answers, its own answers count too.
 */
final class KeepAlive {
    private static final int LEASES = 1000;
    private static final int ID_BYTES = 48 << 10;
    /** What the encoding adds to an id, at most. */
    private static final int ID_OVERHEAD = 4;
    private static final long LONGEST_INTERVAL = Times.seconds(30);
    /** A new lease is named in a beat of an open stream after this time, because most are released sooner. */
    private static final long NAME_AFTER = Times.millis(500);
    /** The time between beats that are sent only because of new leases, and this for each lease. */
    private static final long SHORTEST_GAP = Times.seconds(1);
    private static final long GAP_PER_LEASE = Times.millis(10);
    private static final long SHORTEST_PATIENCE = Times.millis(400);

    private record Beat(long sent, List<Lease> leases) {}

    private final Calls calls;
    private final List<Group> groups = new ArrayList<>();
    private ScheduledFuture<?> next;
    private long nextAt;

    KeepAlive(Calls calls) {
        this.calls = calls;
    }

    synchronized void add(Lease lease) {
        int kind = Long.numberOfLeadingZeros(interval(lease)) / 2;
        int bytes = bytes(lease);
        Group group = groups.stream().filter(one -> one.hasRoom(kind, bytes)).findFirst().orElse(null);
        if (group == null) {
            group = new Group(kind);
            groups.add(group);
        }
        group.leases.put(lease.id, lease);
        group.bytes += bytes;
        wake(group.due());
    }

    /** Keeps a lease no more: the next beat does not name it. */
    synchronized void remove(Lease lease) {
        groups.forEach(group -> group.remove(lease));
    }

    synchronized List<Lease> leases() {
        return groups.stream().flatMap(group -> group.leases.values().stream()).toList();
    }

    private static long interval(Lease lease) {
        return Math.min(lease.ttl() / 3, LONGEST_INTERVAL);
    }

    private static int bytes(Lease lease) {
        return lease.id.length() + ID_OVERHEAD;
    }

    private void wake(long at) {
        if (next != null && nextAt <= at) {
            return;
        }
        if (next != null) {
            next.cancel(false);
        }
        nextAt = at;
        try {
            next = calls.timer.schedule(this::step, at - Times.now(), TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException closed) {
            next = null;
        }
    }

    /** Does what is due, on the timer's thread. */
    private void step() {
        var sends = new ArrayList<Runnable>();
        synchronized (this) {
            next = null;
            groups.forEach(group -> group.step(Times.now(), sends));
            groups.removeIf(group -> group.leases.isEmpty());
            groups.forEach(group -> wake(group.due()));
        }
        sends.forEach(Runnable::run);
    }

    /** The leases of one stream. */
    private final class Group {
        final Map<String, Lease> leases = new LinkedHashMap<>();
        int bytes;
        private final int kind;
        private Stream stream;
        private Stream predecessor;
        private long lastBeat = -LONGEST_INTERVAL;
        private boolean isBeatAsked;
        private long notBefore;
        private int failures;

        Group(int kind) {
            this.kind = kind;
        }

        boolean hasRoom(int kind, int more) {
            return this.kind == kind && leases.size() < LEASES && bytes + more <= ID_BYTES;
        }

        void remove(Lease lease) {
            if (leases.remove(lease.id, lease)) {
                bytes -= bytes(lease);
            }
        }

        /** When there is something to do. */
        long due() {
            long end = leases.values().stream().mapToLong(Lease::end).min().orElse(0);
            return Math.min(end, Math.min(beatDue(), successorDue()));
        }

        private long beatDue() {
            long gap = lastBeat + Math.max(SHORTEST_GAP, GAP_PER_LEASE * leases.size());
            long due = isBeatAsked ? 0 : Times.FOREVER;
            for (Lease lease : leases.values()) {
                long regular = Math.max(lease.begin(), lastBeat) + interval(lease);
                long first = stream == null ? 0 : Math.max(lease.begin() + NAME_AFTER, gap);
                due = Math.min(due, lease.isNamed ? regular : Math.min(regular, first));
            }
            return stream == null ? Math.max(due, notBefore) : due;
        }

        private long successorDue() {
            long due = Times.FOREVER;
            for (Lease lease : stream == null ? List.<Lease>of() : leases.values()) {
                // Half of the TTL, or two intervals of a long one; and a new stream has some time to answer.
                long late = lease.begin() + Math.min(lease.ttl() / 2, 2 * LONGEST_INTERVAL);
                long patient = stream.opened + Math.max(interval(lease) / 2, SHORTEST_PATIENCE);
                due = lease.isRefused ? due : Math.min(due, Math.max(late, patient));
            }
            return due;
        }

        void step(long now, List<Runnable> sends) {
            for (Lease lease : List.copyOf(leases.values())) {
                if (lease.left() <= 0) {
                    remove(lease);
                }
            }
            if (leases.isEmpty()) {
                end(stream, sends);
                end(predecessor, sends);
                return;
            }
            if (successorDue() <= now) {
                end(predecessor, sends);
                predecessor = stream;
                Connection silent = stream.connection;
                sends.add(() -> calls.connections.failed(silent, new UnavailableException(Status.Code.DEADLINE_EXCEEDED, "",
                        silent.address.text() + ": no renewal was confirmed for half of a TTL", 0, null)));
                stream = null;
                notBefore = now;
                isBeatAsked = true;
            }
            if (beatDue() <= now) {
                if (stream == null) {
                    stream = new Stream(this, now);
                    sends.add(stream::open);
                }
                lastBeat = now;
                isBeatAsked = false;
                var named = List.copyOf(leases.values());
                named.forEach(lease -> lease.isNamed = true);
                stream.beats.put(now, new Beat(now, named));
                var request = KeepAliveRequest.newBuilder().setBeat(now)
                        .addAllLeaseIds(named.stream().map(lease -> lease.id).toList()).build();
                Stream through = stream;
                sends.add(() -> through.send(request));
            }
        }

        private void end(Stream ended, List<Runnable> sends) {
            if (ended != null) {
                sends.add(ended::end);
            }
        }
    }

    /** A KeepAlive stream. The number of a beat is when it was sent. */
    private final class Stream implements StreamObserver<KeepAliveResponse> {
        final Map<Long, Beat> beats = new HashMap<>();
        final Group group;
        final long opened;
        private Connection connection;
        private StreamObserver<KeepAliveRequest> requests;

        Stream(Group group, long opened) {
            this.group = group;
            this.opened = opened;
        }

        void open() {
            try {
                connection = calls.connections.forCalls();
                var call = connection.channel.newCall(
                        LockServiceGrpc.getKeepAliveMethod(), calls.options.withExecutor(Runnable::run));
                requests = ClientCalls.asyncBidiStreamingCall(call, this);
            } catch (RuntimeException unusable) { // The client is closed, or its credentials cannot be read.
                onCompleted();
            }
        }

        void send(KeepAliveRequest beat) {
            if (requests != null) {
                requests.onNext(beat);
            }
        }

        void end() {
            if (requests != null) {
                requests.onCompleted();
            }
        }

        @Override
        public void onNext(KeepAliveResponse event) {
            synchronized (KeepAlive.this) {
                if (event.hasKept()) {
                    kept(event.getKept());
                } else if (event.hasLost()) {
                    lost(event.getLost());
                } else if (event.hasAsk() && this == group.stream) {
                    // The server asks before it has read a beat that is under way.
                    group.isBeatAsked = beats.isEmpty();
                }
                wake(group.due());
            }
        }

        private void kept(KeepAliveResponse.Kept kept) {
            Beat beat = beats.remove(kept.getBeat());
            for (int i = 0; beat != null && i < Math.min(beat.leases.size(), kept.getTtlsCount()); i++) {
                long ttl = Times.nanos(kept.getTtls(i));
                if (ttl > 0) {
                    beat.leases.get(i).renewed(beat.sent, ttl);
                    beat.leases.get(i).isRefused = false;
                }
            }
            if (this == group.stream) {
                group.failures = 0;
                if (group.predecessor != null) {
                    calls.timer.execute(group.predecessor::end);
                    group.predecessor = null;
                }
            }
        }

        private void lost(KeepAliveResponse.Lost lost) {
            Lease lease = group.leases.get(lost.getLeaseId());
            if (lease != null && lost.getReason().equals("LEASE_LOST")) {
                lease.lose(lost.getCause(), "the server says " + lost.getCause());
                group.remove(lease);
            } else if (lease != null) {
                lease.isRefused = true;
            }
        }

        @Override
        public void onError(Throwable error) {
            calls.failed(connection, error);
            onCompleted();
        }

        @Override
        public void onCompleted() {
            synchronized (KeepAlive.this) {
                if (this == group.predecessor) {
                    group.predecessor = null;
                } else if (this == group.stream) {
                    group.stream = null;
                    group.isBeatAsked = true;
                    group.notBefore = Times.now() + Times.pause(group.failures++);
                    wake(group.due());
                }
            }
        }
    }
}
