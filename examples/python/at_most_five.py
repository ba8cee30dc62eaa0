"""Jobs of which at most five run at a time, on all machines together: at_most_five.py [JOBS]."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from fencepost import Client


def main(jobs: str = "12") -> None:
    client = Client(owner=f"five-{os.getpid()}")
    running: set[int] = set()
    mutex = threading.Lock()

    def run(job: int) -> int:
        with client.semaphore("transcode", limit=5, wait=60, ttl=8):
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
