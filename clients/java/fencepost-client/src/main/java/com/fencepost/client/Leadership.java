package com.fencepost.client;

import com.fencepost.v1.SessionCommand;

/** A leadership: the lock of the election's name. {@link #close()} resigns. */
public final class Leadership extends HeldLock {
    Leadership(FencepostClient client, Lease lease) {
        super(client, lease);
    }

    /**
     * Replaces the value that observers see.
     *
     * @param value at most 4096 bytes
     * @throws LeaseLostException if the leadership has ended
     */
    public void proclaim(String value) {
        var proclaim = SessionCommand.Proclaim.newBuilder().setLeaseId(lease.id).setValue(value);
        client.call(SessionCommand.newBuilder().setProclaim(proclaim), (result, sent) -> null);
    }
}
