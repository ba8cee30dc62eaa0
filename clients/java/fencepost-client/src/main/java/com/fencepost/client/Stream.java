package com.fencepost.client;

import com.fencepost.client.Command.Kind;
import com.fencepost.v1.LockServiceGrpc;
import com.fencepost.v1.SessionRequest;
import com.fencepost.v1.SessionResponse;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import java.util.HashMap;
import java.util.Map;

/** One attempt to serve the commands: a Session to one server, over a connection of its own. */
final class Stream extends ClientCall.Listener<SessionResponse> {
    private static final long OPEN = Times.seconds(5);
    private static final long FRESH = Times.seconds(2);
    /** For the results of a server that stops. */
    private static final long DRAIN = Times.seconds(3);
    /** For the result of a probe, which no store delays. */
    private static final long PROBE = Times.millis(2750);
    /** Without an event while a result is owed: then a probe is sent. */
    private static final long OWED_QUIET = Times.millis(750);
    /** The same while only waits, watches and leases are there. */
    private static final long LONGEST_QUIET = Times.seconds(10);

    final Address address;
    private final Carrier carrier;
    volatile ManagedChannel channel;
    volatile String token = "";
    private volatile ClientCall<SessionRequest, SessionResponse> call;
    private volatile boolean isStarted;

    // Guarded by the session.
    private final Map<Long, Command<?>> inFlight = new HashMap<>();
    final int[] counts = new int[Kind.values().length];
    /** When the server first said something, and when it last did; when something was sent last. */
    long opened;
    long heard;
    private long sent;
    /** Since when the server stops; 0: it does not. */
    long drains;
    /** How long a server and the network take for what no store delays. */
    long trip;
    /** A command of a caller, or a renewal, has a result. */
    boolean hasServed;
    boolean isOver;
    Command<?> probe;
    private final long began = Times.now();

    Stream(Carrier carrier, Address address) {
        this.carrier = carrier;
        this.address = address;
    }

    /** Opens it, which may block: credentials are read. */
    void open() {
        try {
            token = carrier.settings.token();
            channel = carrier.settings.connect(address);
            call = channel.newCall(LockServiceGrpc.getSessionMethod(), CallOptions.DEFAULT.withExecutor(Runnable::run));
            if (!carrier.greet(this)) {
                channel.shutdownNow();
                return;
            }
            call.start(this, Settings.headers(token));
            call.request(Integer.MAX_VALUE);
        } catch (Exception unusable) { // A file is being replaced, or what gives the token is away.
            end(unusable instanceof FencepostException known ? known : new UnavailableException(
                    Status.Code.UNAVAILABLE, "", address.text() + ": no stream can be opened: " + unusable, unusable));
        }
    }

    /** Whether the connection stands, and has room for a message. */
    boolean isWritable() {
        return isStarted && !isOver && drains == 0 && call.isReady();
    }

    void send(SessionRequest message) {
        try {
            call.sendMessage(message);
        } catch (RuntimeException ended) {
            end(FencepostException.of(ended, address.text()));
        }
    }

    void sent(Command<?> command, long now) {
        sent = now;
        inFlight.put(command.id, command);
        counts[command.kind.ordinal()]++;
    }

    /** The command of a result, which may have been given up meanwhile; null if there is none. */
    Command<?> answered(long id) {
        Command<?> command = inFlight.remove(id);
        if (command != null) {
            counts[command.kind.ordinal()]--;
            probe = command == probe ? null : probe;
        }
        return command;
    }

    /** Ends it, so that the next one begins. */
    void end(FencepostException why) {
        synchronized (carrier.session) {
            if (isOver) {
                return;
            }
            isOver = true;
        }
        FencepostClient.CALLBACKS.execute(() -> {
            if (channel != null) {
                channel.shutdownNow();
            }
            carrier.ended(this, why);
        });
    }

    /** Whether it is being opened, which a short wait is not to fail for. */
    boolean isFresh(long now) {
        return opened == 0 && !isOver && now < began + FRESH;
    }

    /** The process was stopped until now, and did not listen. */
    void stood(long now) {
        heard = now;
        if (probe != null) {
            probe.end = probeEnd(now);
        }
    }

    long probeEnd(long now) {
        return now + PROBE + 2 * trip;
    }

    /** When it has been silent for too long, or has not served a lease for too long. */
    long stuckAt(long shortestTtl, long stalled, boolean isOnlyAddress) {
        long patience = Math.min(Math.max(shortestTtl / 10 * 3, Times.seconds(1)), Times.seconds(10)) + trip;
        // Another connection to a server that answers does not help.
        long due = Math.max(stalled, (isOnlyAddress && opened > 0 ? Math.max(heard, began) : began) + patience);
        due = opened == 0 ? Math.min(due, began + OPEN) : due;
        due = drains > 0 ? Math.min(due, drains + DRAIN) : due;
        return probe != null ? Math.min(due, probe.end) : due;
    }

    /** When it has been silent for so long that a probe is due. */
    long quietAt(long shortestTtl) {
        if (opened == 0 || drains > 0 || probe != null) {
            return Times.FOREVER;
        }
        boolean isOwed = counts[Kind.CALL.ordinal()] + counts[Kind.RENEWAL.ordinal()] > 0 || sent > heard;
        return heard + (isOwed ? OWED_QUIET : Math.min(LONGEST_QUIET, Math.max(shortestTtl / 6, OWED_QUIET)));
    }

    // What the transport says, on its own threads.

    @Override
    public void onReady() {
        isStarted = true;
        carrier.wake();
    }

    @Override
    public void onMessage(SessionResponse message) {
        carrier.receive(this, message.getEventsList());
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
        Status why = status.isOk() ? Status.UNAVAILABLE.withDescription("the server ended the stream") : status;
        end(FencepostException.of(why.asRuntimeException(trailers), address.text()));
    }
}
