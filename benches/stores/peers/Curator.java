import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Acquires and releases Curator's lock. Each line of input is a turn: {@code own|hot CALLERS MILLISECONDS NAME}. */
public final class Curator {
    public static void main(String[] args) throws Exception {
        try (var client = CuratorFrameworkFactory.newClient(args[0], new ExponentialBackoffRetry(100, 5))) {
            client.start();
            client.blockUntilConnected();
            var lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line; (line = lines.readLine()) != null; ) {
                var words = line.split(" ");
                var until = System.nanoTime() + Long.parseLong(words[2]) * 1_000_000;
                var callers = new ArrayList<Callable<Integer>>();
                for (int n = 0; n < Integer.parseInt(words[1]); n++) {
                    var path = "/curator/" + words[3] + (words[0].equals("hot") ? "" : "." + n);
                    callers.add(() -> {
                        var lock = new InterProcessMutex(client, path);
                        int done = 0;
                        for (; System.nanoTime() < until; done++) {
                            lock.acquire();
                            lock.release();
                        }
                        return done;
                    });
                }
                var pool = Executors.newFixedThreadPool(callers.size());
                int sum = 0;
                for (Future<Integer> done : pool.invokeAll(callers)) {
                    sum += done.get();
                }
                pool.shutdown();
                System.out.println(sum);
            }
        }
    }
}
