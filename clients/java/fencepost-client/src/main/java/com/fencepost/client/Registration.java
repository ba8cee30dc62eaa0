package com.fencepost.client;

import java.util.concurrent.CompletableFuture;

/** Something that goes on until it is closed: a watch, an observation or a candidacy. */
public interface Registration extends AutoCloseable {
    /** {@return completes when this ends; exceptionally if the server refuses it} */
    CompletableFuture<Void> ended();

    /** Ends it. No callback begins after that. */
    @Override
    void close();
}
