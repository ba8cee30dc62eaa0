package fencepost.example;

import com.fencepost.client.Election;
import com.fencepost.client.FencepostClient;
import java.time.Duration;
import java.util.concurrent.ForkJoinPool;

/** A candidate for leadership, until it is ended: Leader NAME [TTL_S]. Observer shows who leads. */
public final class Leader {
    public static void main(String[] args) {
        String name = args.length > 0 ? args[0] : "candidate";
        int ttl = args.length > 1 ? Integer.parseInt(args[1]) : 5;
        FencepostClient client = FencepostClient.builder().owner(name).build();
        Election election = client.election("leader");
        var campaign = election.campaign(name + ".example:8080").ttl(Duration.ofSeconds(ttl));
        var candidacy = election.lead(campaign, ForkJoinPool.commonPool(),
                // The work of a leader begins here and ends there.
                leadership -> System.out.println(name + " leads with token " + leadership.token()),
                loss -> System.out.println(name + " leads no more: " + loss.getMessage()));
        candidacy.ended().join();
    }
}
