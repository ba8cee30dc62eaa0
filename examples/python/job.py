"""A job under a lock: job.py [DATABASE] [STEPS] [TTL_S].

Each write carries the fencing token, and the table refuses a token below the highest that it has seen.
"""

import os
import sqlite3
import sys
import time

from fencepost import Client, LeaseLost

TABLE = "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, step INTEGER NOT NULL, token INTEGER NOT NULL)"
WRITE = """INSERT INTO reports VALUES ('daily', ?, ?)
    ON CONFLICT (name) DO UPDATE SET step = excluded.step, token = excluded.token WHERE excluded.token >= token"""


def write(database: sqlite3.Connection, step: int, token: int) -> None:
    with database:
        if database.execute(WRITE, (step, token)).rowcount == 0:
            sys.exit(f"refused: a newer token than {token} has written")


def main(path: str = "reports.db", steps: str = "5", ttl: str = "10") -> None:
    database = sqlite3.connect(path)
    database.execute(TABLE)
    client = Client(owner=f"job-{os.getpid()}")
    with client.lock("reports", wait=60, ttl=float(ttl)) as lock:
        print(f"locked with token {lock.token}", flush=True)
        for step in range(1, int(steps) + 1):
            token = lock.check()
            time.sleep(0.2)  # The work of this step.
            write(database, step, token)
            print(f"wrote step {step}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LeaseLost as lost:
        sys.exit(f"lost: {lost}")
