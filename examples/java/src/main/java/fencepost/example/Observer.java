package fencepost.example;

import com.fencepost.client.FencepostClient;
import com.fencepost.v1.Leader;
import java.util.Optional;
import java.util.concurrent.ForkJoinPool;

/** Shows who leads, until it is ended: the present leader, then each change. */
public final class Observer {
    public static void main(String[] args) {
        FencepostClient client = FencepostClient.builder().build();
        client.election("leader").observe(ForkJoinPool.commonPool(), Observer::show).ended().join();
    }

    private static void show(Optional<Leader> leader) {
        System.out.println(leader.map(one -> one.getCandidate() + " leads at " + one.getValue() + ", token "
                + one.getFencingToken()).orElse("nobody leads"));
    }
}
