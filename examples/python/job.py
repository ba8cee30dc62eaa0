"""A job under a lock: job.py [DATABASE] [STEPS] [TTL_S].

Each step raises the fencing token before it reads, in the transaction of its work, which a newer holder's token refuses.
"""

import os
import sqlite3
import sys
import time

from fencepost import Client, LeaseLost, fence

TABLE = "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, steps INTEGER NOT NULL, token INTEGER NOT NULL)"
WRITE = "INSERT OR REPLACE INTO reports VALUES ('daily', ?, ?)"


def write(database: sqlite3.Connection, token: int) -> None:
    with fence.transaction(database, ("reports", token)) as cursor:
        (steps,) = cursor.execute("SELECT coalesce(max(steps), 0) FROM reports").fetchone()
        cursor.execute(WRITE, (steps + 1, token))


def main(path: str = "reports.db", steps: str = "5", ttl: str = "10") -> None:
    database = sqlite3.connect(path)
    for table in (fence.SQLITE.create, TABLE):
        database.execute(table)
    client = Client(owner=f"job-{os.getpid()}")
    with client.lock("reports", wait=60, ttl=float(ttl)) as lock:
        print(f"locked with token {lock.token}", flush=True)
        for step in range(1, int(steps) + 1):
            token = lock.check()
            time.sleep(0.2)  # The work of this step.
            write(database, token)
            print(f"wrote step {step}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LeaseLost as lost:
        sys.exit(f"lost: {lost}")
    except fence.StaleToken as stale:
        sys.exit(f"refused: {stale}")
