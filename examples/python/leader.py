"""A candidate for leadership, until it is ended: leader.py NAME [TTL_S]. observer.py shows who leads."""

import os
import sys
from datetime import timedelta

from locks import LeaseLost, Locks, Unavailable, WaitTimeout


def main(name: str, ttl: str = "5") -> None:
    locks = Locks(os.environ.get("FENCEPOST_ADDR", "127.0.0.1:50051"), owner=name)
    told = {"address": f"{name}.example:8080"}
    while True:
        try:
            with locks.lock("leader", wait=3600, ttl=timedelta(seconds=float(ttl)), metadata=told) as lock:
                print(f"{name} leads with token {lock.fencing_token}", flush=True)
                while not lock.wait_lost(timeout=1):
                    pass  # The work of a leader, a second at a time.
        except LeaseLost as lost:
            print(f"{name} leads no more: {lost}", flush=True)
        except (WaitTimeout, Unavailable):
            pass  # Campaigns again.


if __name__ == "__main__":
    main(*sys.argv[1:])
