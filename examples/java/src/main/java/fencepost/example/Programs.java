package fencepost.example;

/** What the programs share. */
final class Programs {
    /** The locks of a program, on the server at FENCEPOST_ADDR. */
    static Locks connect(String owner) {
        String address = System.getenv().getOrDefault("FENCEPOST_ADDR", "127.0.0.1:50051");
        return new Locks(address, owner + "-" + ProcessHandle.current().pid());
    }

    private Programs() {}
}
