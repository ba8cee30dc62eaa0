package com.fencepost.fence;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;

/** A file with the highest token of its lock beside it. */
public final class FileFence {
    // Signals to the process group, as of Ctrl-C, end neither the child nor its lock, because this process may go on. The child ends
    // with this process, which closes its input.
    private static final String HOLD =
            "trap '' HUP INT QUIT USR1 USR2 ALRM TERM; exec flock \"$0\" sh -c 'echo && exec cat'";

    private FileFence() {}

    /**
     * Raises the token beside a file, and keeps other holders of this machine out until the work has ended.
     *
     * <p>The token is in {@code PATH.token}, and {@code PATH.lock} is locked meanwhile by the program {@code flock} of
     * util-linux, because the locks of Java's channels do not exclude those of {@code flock}, which scripts and other languages
     * take: all processes must see one file system that has it. Delete neither of them. Give the file its content at once, by a
     * rename, if the process may end in the work.
     *
     * @param path of the file
     * @param token of the lock
     * @param work gets the path
     * @param <R> what the work returns
     * @param <E> what the work throws
     * @return what the work returned
     * @throws StaleTokenException if a newer holder has raised the file's token
     * @throws IOException if the token cannot be kept, {@code flock} is missing, or its process was killed before the work ended
     * @throws E of the work
     */
    public static <R, E extends Exception> R run(Path path, FencingToken token, Work<? super Path, R, E> work) throws IOException, E {
        Path kept = path.resolveSibling(path.getFileName() + ".token");
        Process lock = new ProcessBuilder("sh", "-c", HOLD, path + ".lock")
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        try {
            if (lock.getInputStream().read() < 0) {
                throw new IOException("flock cannot lock " + path + ".lock");
            }
            long highest = Files.exists(kept) ? FencingToken.parseKept(Files.readString(kept).strip(), kept + " has no token") : 0;
            token.compare(highest);
            if (highest < token.number()) {
                replace(kept, token.header());
            }
            R result = work.run(path);
            requireAlive(lock, path);
            return result;
        } finally {
            unlock(lock);
        }
    }

    private static void unlock(Process lock) {
        try {
            lock.getOutputStream().close();
        } catch (IOException closed) {
            // It has ended already.
        }
    }

    private static void requireAlive(Process lock, Path path) throws IOException {
        try {
            lock.getOutputStream().write('\n');
            lock.getOutputStream().flush();
            if (lock.getInputStream().read() >= 0) {
                return;
            }
        } catch (IOException closed) {
            // It was killed.
        }
        throw new IOException("the lock of " + path + " has ended early: another holder may have run beside this one");
    }

    /** Durably: a crash leaves the old content or the new one. */
    private static void replace(Path path, String text) throws IOException {
        Path temporary = path.resolveSibling(path.getFileName() + ".new");
        Files.writeString(temporary, text);
        sync(temporary, StandardOpenOption.WRITE);
        Files.move(temporary, path, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        sync(path.toAbsolutePath().getParent(), StandardOpenOption.READ);
    }

    private static void sync(Path path, StandardOpenOption option) throws IOException {
        try (FileChannel channel = FileChannel.open(path, option)) {
            channel.force(true);
        }
    }
}
