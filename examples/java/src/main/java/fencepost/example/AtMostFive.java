package fencepost.example;

import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.Mode;
import com.google.protobuf.util.Durations;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;

/** Jobs of which at most five run at a time, on all machines together: AtMostFive [JOBS]. */
public final class AtMostFive {
    private static final Mode FIVE = Mode.newBuilder()
            .setSemaphore(Mode.Semaphore.newBuilder().setPermits(1).setLimit(5)).build();

    public static void main(String[] args) throws Exception {
        int jobs = args.length > 0 ? Integer.parseInt(args[0]) : 12;
        Locks locks = Programs.connect("five");
        AtomicInteger running = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        ExecutorService pool = Executors.newFixedThreadPool(jobs);
        var tasks = IntStream.range(0, jobs).<Callable<Void>>mapToObj(job -> () -> {
            var request = AcquireRequest.newBuilder().setName("transcode").setMode(FIVE)
                    .setTtl(Durations.fromSeconds(8)).setWait(Durations.fromMinutes(1));
            try (Locks.Lock lock = locks.lock(request)) {
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
        }
        System.out.println("at most " + most + " at a time");
    }
}
