import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.redisson.Redisson;
import org.redisson.config.Config;

/**
 * Acquires and releases Redisson's locks: the plain one for locks that nobody else wants, the fair one for a hot lock.
 * Each line of input is a turn: {@code own|hot CALLERS MILLISECONDS NAME}.
 */
public final class RedissonLocks {
    public static void main(String[] args) throws Exception {
        var config = new Config();
        config.useSingleServer().setAddress(args[0]);
        var client = Redisson.create(config);
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            var words = line.split(" ");
            var hot = words[0].equals("hot");
            var until = System.nanoTime() + Long.parseLong(words[2]) * 1_000_000;
            var callers = new ArrayList<Callable<Integer>>();
            for (int n = 0; n < Integer.parseInt(words[1]); n++) {
                var name = words[3] + (hot ? "" : "." + n);
                callers.add(() -> {
                    var lock = hot ? client.getFairLock(name) : client.getLock(name);
                    int done = 0;
                    for (; System.nanoTime() < until; done++) {
                        lock.lock();
                        lock.unlock();
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
        client.shutdown();
    }
}
