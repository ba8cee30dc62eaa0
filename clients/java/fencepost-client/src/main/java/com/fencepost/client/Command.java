package com.fencepost.client;

import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent.CommandResult;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.BiFunction;

/** A command of a session, which is sent on one stream after the other until it has a result. Guarded by the session. */
final class Command<T> {
    /** What of a server's limit a command counts for: how many may have no result. A server takes 1,000 in all. */
    enum Kind {
        LOCAL(Integer.MAX_VALUE), RENEWAL(240), CALL(150), WAIT(600);

        final int limit;

        Kind(int limit) {
            this.limit = limit;
        }
    }

    static final int TRIES = 3;
    private static final long LONGEST_WAIT = Times.seconds(86_400);

    final SessionCommand.Builder message;
    final Kind kind;
    /** Makes the value of an answer; it may throw a FencepostException. */
    final BiFunction<CommandResult, Command<T>, T> read;
    /** Completes while the session is locked: its dependents run nothing of the user. */
    final CompletableFuture<T> done = new CompletableFuture<>();
    long id;
    /** When it fails without a result. */
    long end = Times.FOREVER;
    /** When its wait is over; 0: it does not wait. */
    long waitEnd;
    /** The wait that it asks for at most. */
    long longest = LONGEST_WAIT;
    /** How many streams may end before it fails; 0: any number. */
    int tries;
    /** What it renews. */
    Lease lease;
    /** How many locks it takes; 0: it is no acquire. */
    int count;
    /** What it was granted. */
    List<Lease> leases = List.of();
    /** Takes the messages of a watch. */
    Subscription watch;
    /** When this stream sent it; 0: it did not, or the server refused it. */
    long sent;
    boolean wasSent;
    boolean isQueued;
    boolean isAbandoned;
    boolean isSuperseded;
    int failures;
    /** When it is sent once more; 0: it is not waiting for that. */
    long retryAt;

    Command(Kind kind, SessionCommand.Builder message, BiFunction<CommandResult, Command<T>, T> read) {
        this.kind = kind;
        this.message = message;
        this.read = read;
    }

    /** Whether it is of one stream: the next one does not send it. */
    boolean isLocal() {
        return kind == Kind.LOCAL && watch == null;
    }

    boolean isWait() {
        return waitEnd > 0 && !isAbandoned;
    }

    /** Its message, with what is left of its wait. One that is abandoned only finds what it was granted. */
    SessionCommand prepare(long now) {
        if (waitEnd > 0) {
            // A wait never becomes a try, whose errors differ.
            long left = isAbandoned ? 0 : Math.min(Math.max(waitEnd - now, Times.millis(1)), longest);
            var wait = Times.wire(left);
            switch (message.getCommandCase()) {
                case ACQUIRE -> message.getAcquireBuilder().getRequestBuilder().setWait(wait);
                case ACQUIRE_ALL -> message.getAcquireAllBuilder().getRequestBuilder().setWait(wait);
                default -> message.getCampaignBuilder().setWait(wait);
            }
        }
        return message.build();
    }

    void answer(CommandResult result) {
        try {
            done.complete(read.apply(result, this));
        } catch (RuntimeException unusable) {
            done.completeExceptionally(unusable);
        }
    }
}
