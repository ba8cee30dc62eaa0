package fencepost.example;

import com.fencepost.v1.ChangeKind;
import com.fencepost.v1.GetLockRequest;
import com.fencepost.v1.LockState;
import com.fencepost.v1.WatchLockRequest;
import io.grpc.StatusRuntimeException;

/** Shows who leads, until it is ended: the present leader, then each change. */
public final class Observer {
    private static long newest;

    public static void main(String[] args) throws InterruptedException {
        var stub = Programs.connect("observer").stub;
        var present = GetLockRequest.newBuilder().setNamespace("default").setName("leader").build();
        var watch = WatchLockRequest.newBuilder().setNamespace("default").setName("leader").build();
        while (true) {
            try {
                stub.watchLock(watch).forEachRemaining(event -> {
                    if (event.hasState()) {
                        show(event.getState());
                    } else if (event.getChange().getKind() != ChangeKind.CHANGE_KIND_QUEUED) {
                        show(stub.getLock(present).getLock()); // A change does not show the holder's metadata.
                    }
                });
            } catch (StatusRuntimeException ended) {
                Thread.sleep(500); // The next watch begins with the present state.
            }
        }
    }

    private static void show(LockState state) {
        if (state.getHoldersCount() == 0) {
            System.out.println("nobody leads");
        }
        for (var holder : state.getHoldersList()) {
            if (holder.getFencingToken() > newest) {
                newest = holder.getFencingToken();
                String address = holder.getMetadataOrDefault("address", "");
                System.out.println(holder.getOwner() + " leads at " + address + ", token " + newest);
            }
        }
    }
}
