package com.fencepost.client;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;

/** The address of a server: {@code HOST:PORT}, {@code https://HOST:PORT} or {@code unix:/PATH}. */
record Address(String text, String host, int port, boolean encrypted) {
    private static final Pattern TCP = Pattern.compile("(?:(https?)://)?(?:\\[([^\\]]+)]|([^\\s:/\\[\\]]+)):(\\d{1,5})/?");
    private static final Set<String> LOCAL = Set.of("localhost", "127.0.0.1", "::1");

    static List<Address> parse(String list) {
        var addresses = new ArrayList<Address>();
        for (String text : list.split(",")) {
            addresses.add(one(text.strip()));
        }
        return List.copyOf(addresses);
    }

    private static Address one(String text) {
        if (text.startsWith("unix:/")) {
            return new Address(text, null, 0, false);
        }
        var found = TCP.matcher(text);
        if (!found.matches() || Integer.parseInt(found.group(4)) > 65_535) {
            throw new IllegalArgumentException(
                    "address: \"" + text + "\" is not HOST:PORT, https://HOST:PORT or unix:/PATH");
        }
        String host = found.group(2) != null ? found.group(2) : found.group(3);
        return new Address(text, host, Integer.parseInt(found.group(4)), "https".equals(found.group(1)));
    }

    boolean isUnix() {
        return host == null;
    }

    String path() {
        return text.substring("unix:".length());
    }

    /** Whether nobody can eavesdrop on the connection: it is encrypted, or does not leave the machine. */
    boolean isPrivate() {
        return encrypted || isUnix() || LOCAL.contains(host);
    }
}
