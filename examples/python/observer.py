"""Shows who leads, until it is ended: the present leader, then each change."""

import os
import time
from collections.abc import Iterator

import grpc

from fencepost.v1 import lock_pb2 as pb
from fencepost.v1.lock_pb2_grpc import LockServiceStub


def states(stub: LockServiceStub) -> Iterator[pb.LockState]:
    name = {"namespace": "default", "name": "leader"}
    for event in stub.WatchLock(pb.WatchLockRequest(**name)):
        if event.HasField("state"):
            yield event.state
        elif event.change.kind != pb.CHANGE_KIND_QUEUED:
            # A change does not show the holder's metadata.
            yield stub.GetLock(pb.GetLockRequest(**name), timeout=5).lock


def main() -> None:
    stub = LockServiceStub(grpc.insecure_channel(os.environ.get("FENCEPOST_ADDR", "127.0.0.1:50051")))
    newest = 0
    while True:
        try:
            for state in states(stub):
                for holder in state.holders:
                    if holder.fencing_token > newest:
                        newest = holder.fencing_token
                        print(f"{holder.owner} leads at {holder.metadata['address']}, token {newest}", flush=True)
                if not state.holders:
                    print("nobody leads", flush=True)
        except grpc.RpcError:
            time.sleep(0.5)  # The next watch begins with the present state.


if __name__ == "__main__":
    main()
