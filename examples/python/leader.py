"""A candidate for leadership, until it is ended: leader.py NAME [TTL_S]. observer.py shows who leads."""

import sys

from fencepost import Client, Leadership, LeaseLost


def main(name: str, ttl: str = "5") -> None:
    def lead(leadership: Leadership) -> None:
        print(f"{name} leads with token {leadership.token}", flush=True)
        while not leadership.wait_lost(timeout=1):
            pass  # The work of a leader, a second at a time.

    def stop(loss: LeaseLost) -> None:
        print(f"{name} leads no more: {loss}", flush=True)

    Client(owner=name).election("leader").lead(lead, stop, value=f"{name}.example:8080", ttl=float(ttl))


if __name__ == "__main__":
    main(*sys.argv[1:])
