package com.fencepost.fence;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.Optional;
import java.util.regex.Pattern;

/**
 * An object of S3, or of a store with conditional writes, whose body begins with the token of its last holder.
 *
 * <p>The token is in the body, because a conditional write compares the ETag, which is that of the body alone: with the token in
 * the metadata, a paused holder that read the same bytes as they are now would pass.
 */
public final class FencedObject {
    // The next line is 1, or 0 while the object has a token alone.
    private static final Pattern HEAD = Pattern.compile("fencing-token: ([0-9]+)\n([01])\n");
    private static final int LONGEST_HEAD = 64;
    // A write fails only if another one came between, and those of one lock are few.
    private static final int ATTEMPTS = 100;

    private final Store store;

    /** How the object is read and replaced. */
    public interface Store {
        /**
         * Reads the object.
         *
         * @return empty if there is none
         * @throws IOException if the store fails, or has no such bucket
         */
        Optional<Version> get() throws IOException;

        /**
         * Replaces the object.
         *
         * @param body the new one
         * @param etag the one that the object must have ({@code If-Match}), or empty if there must be none
         *     ({@code If-None-Match: *})
         * @return false if another write came between: the store answers 409, 412, or that the object is missing
         * @throws IOException if the store fails
         */
        boolean put(byte[] body, Optional<String> etag) throws IOException;
    }

    /**
     * What a store has.
     *
     * @param body of the object
     * @param etag of the body
     */
    public record Version(byte[] body, String etag) {}

    /**
     * An object.
     *
     * @param store reads and replaces it
     */
    public FencedObject(Store store) {
        this.store = store;
    }

    /**
     * Raises a token, then reads the object.
     *
     * @param token of the lock
     * @return what the object has; empty if there is none
     * @throws StaleTokenException if a newer holder has raised the object's token
     * @throws IOException if the store fails, or the object begins without a token
     */
    public Optional<byte[]> read(FencingToken token) throws IOException {
        return change(token, Optional.empty());
    }

    /**
     * Replaces what the object has.
     *
     * @param token of the lock
     * @param data the new content
     * @throws StaleTokenException if a newer holder has raised the object's token; nothing was changed then
     * @throws IOException if the store fails, or the object begins without a token
     */
    public void write(FencingToken token, byte[] data) throws IOException {
        change(token, Optional.of(data));
    }

    private Optional<byte[]> change(FencingToken token, Optional<byte[]> data) throws IOException {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            Optional<Version> version = store.get();
            if (version.isPresent() && version.get().etag().isEmpty()) {
                throw new IOException("the store gave the object without an ETag, on which writes depend");
            }
            long highest = 0;
            Optional<byte[]> found = Optional.empty();
            if (version.isPresent()) {
                byte[] body = version.get().body();
                var head = HEAD.matcher(new String(body, 0, Math.min(body.length, LONGEST_HEAD), ISO_8859_1));
                String number = head.lookingAt() ? head.group(1) : "";
                highest = FencingToken.parseKept(number, "the object does not begin with a token: put one there first");
                if (head.group(2).equals("1")) {
                    found = Optional.of(Arrays.copyOfRange(body, head.end(), body.length));
                }
            }
            token.compare(highest);
            if (data.isEmpty() && highest == token.number()) {
                return found;
            }
            if (store.put(encode(token, data.isPresent() ? data : found), version.map(Version::etag))) {
                return found;
            }
        }
        throw new IOException("the store refused the write at " + ATTEMPTS + " attempts, as if others had replaced the object");
    }

    private static byte[] encode(FencingToken token, Optional<byte[]> data) {
        var body = new ByteArrayOutputStream();
        body.writeBytes(("fencing-token: " + token.number() + "\n" + (data.isPresent() ? 1 : 0) + "\n").getBytes(ISO_8859_1));
        data.ifPresent(body::writeBytes);
        return body.toByteArray();
    }
}
