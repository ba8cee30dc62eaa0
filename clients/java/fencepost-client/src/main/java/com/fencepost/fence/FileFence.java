package com.fencepost.fence;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;

/** A file with the highest token of its lock beside it. */
public final class FileFence {
    private FileFence() {}

    /**
     * Raises the token beside a file, and keeps other holders of this machine out until the work has ended.
     *
     * <p>The token is in {@code PATH.token}, and {@code PATH.lock} is locked meanwhile by the program {@code flock} of
     * util-linux, because the locks of Java's channels do not exclude those of {@code flock}, which scripts and other languages
     * take: all processes must see one file system that has it. Give the file its content at once, by a rename, if the process
     * may end in the work.
     *
     * @param path of the file
     * @param token of the lock
     * @param work gets the path
     * @param <R> what the work returns
     * @param <E> what the work throws
     * @return what the work returned
     * @throws StaleTokenException if a newer holder has raised the file's token
     * @throws IOException if the token cannot be kept, or {@code flock} is missing
     * @throws E of the work
     */
    public static <R, E extends Exception> R run(Path path, FencingToken token, Work<? super Path, R, E> work) throws IOException, E {
        Path kept = path.resolveSibling(path.getFileName() + ".token");
        // The child ends when this process does, because its input ends.
        Process lock = new ProcessBuilder("flock", path + ".lock", "sh", "-c", "echo && exec cat")
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        try {
            if (lock.getInputStream().read() < 0) {
                throw new IOException("flock cannot lock " + path + ".lock");
            }
            long highest = Files.exists(kept) ? FencingToken.parse(token.lock(), Files.readString(kept).strip()).number() : 0;
            token.compare(highest);
            if (highest < token.number()) {
                replace(kept, token.header());
            }
            return work.run(path);
        } finally {
            lock.getOutputStream().close();
        }
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
