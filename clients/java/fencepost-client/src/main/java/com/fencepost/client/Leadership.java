package com.fencepost.client;

import com.fencepost.v1.ElectionServiceGrpc;
import com.fencepost.v1.ProclaimRequest;

/** A leadership: the lock of the election's name. {@link #close()} resigns. */
public final class Leadership extends HeldLock {
    Leadership(HeldLock lock) {
        super(lock.client, lock.lease);
    }

    /**
     * Replaces the value that observers see.
     *
     * @param value at most 4096 bytes
     * @throws LeaseLostException if the leadership has ended
     */
    public void proclaim(String value) {
        var request = ProclaimRequest.newBuilder().setLeaseId(lease.id).setValue(value).build();
        client.call(ElectionServiceGrpc.getProclaimMethod(), request);
    }
}
