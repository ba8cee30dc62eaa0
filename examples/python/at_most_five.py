"""Jobs of which at most five run at a time, on all machines together: at_most_five.py [JOBS]."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from fencepost.v1.lock_pb2 import Mode
from locks import Locks

FIVE = Mode(semaphore=Mode.Semaphore(permits=1, limit=5))


def main(jobs: str = "12") -> None:
    locks = Locks(os.environ.get("FENCEPOST_ADDR", "127.0.0.1:50051"), owner=f"five-{os.getpid()}")
    running: set[int] = set()
    mutex = threading.Lock()

    def run(job: int) -> int:
        with locks.lock("transcode", wait=60, ttl=timedelta(seconds=8), mode=FIVE):
            with mutex:
                running.add(job)
                at_once = len(running)
            time.sleep(0.5)  # The work of this job.
            with mutex:
                running.remove(job)
        print(f"job {job} has run", flush=True)
        return at_once

    with ThreadPoolExecutor(max_workers=int(jobs)) as pool:
        most = max(pool.map(run, range(int(jobs))))
    print(f"at most {most} at a time", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
