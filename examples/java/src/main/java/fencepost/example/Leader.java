package fencepost.example;

import com.fencepost.v1.AcquireRequest;
import com.google.protobuf.util.Durations;

/** A candidate for leadership, until it is ended: Leader NAME [TTL_S]. Observer shows who leads. */
public final class Leader {
    public static void main(String[] args) throws InterruptedException {
        String name = args.length > 0 ? args[0] : "candidate";
        int ttl = args.length > 1 ? Integer.parseInt(args[1]) : 5;
        Locks locks = Programs.connect(name);
        while (true) {
            var request = AcquireRequest.newBuilder()
                    .setName("leader")
                    .setTtl(Durations.fromSeconds(ttl))
                    .setWait(Durations.fromHours(1))
                    .putMetadata("address", name + ".example:8080");
            try (Locks.Lock lock = locks.lock(request)) {
                System.out.println(name + " leads with token " + lock.token());
                lock.lost.join(); // The work of a leader ends then.
            } catch (Locks.LeaseLost lost) {
                System.out.println(name + " leads no more: " + lost.getMessage());
            } catch (Locks.WaitTimeout | Locks.Unavailable failed) {
                System.out.println(name + " campaigns again: " + failed.getMessage());
            }
        }
    }
}
