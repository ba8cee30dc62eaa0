package fencepost.example;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.HeldLock;
import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;

/** Jobs of which at most five run at a time, on all machines together: AtMostFive [JOBS]. */
public final class AtMostFive {
    public static void main(String[] args) throws Exception {
        int jobs = args.length > 0 ? Integer.parseInt(args[0]) : 12;
        FencepostClient client = FencepostClient.builder().build();
        AtomicInteger running = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        ExecutorService pool = Executors.newFixedThreadPool(jobs);
        var tasks = IntStream.range(0, jobs).<Callable<Void>>mapToObj(job -> () -> {
            try (HeldLock permit = client.semaphore("transcode", 5)
                    .ttl(Duration.ofSeconds(8)).waitFor(Duration.ofMinutes(1)).acquire()) {
                permit.check();
                most.accumulateAndGet(running.incrementAndGet(), Math::max);
                Thread.sleep(500); // The work of this job.
                running.decrementAndGet();
            }
            System.out.println("job " + job + " has run");
            return null;
        }).toList();
        try {
            for (Future<Void> done : pool.invokeAll(tasks)) {
                done.get();
            }
        } finally {
            pool.shutdown();
            client.close();
        }
        System.out.println("at most " + most + " at a time");
    }
}
