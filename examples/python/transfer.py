"""Transfers between accounts, each under the locks of both: transfer.py [DATABASE] [TRANSFERS]."""

import os
import random
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor

from fencepost import Client

ACCOUNTS = ["alice", "bob", "carol"]
TABLE = "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL)"
ADD = "UPDATE accounts SET balance = balance + ?, token = ? WHERE name = ? AND token <= ?"


def move(path: str, amounts: dict[str, int], tokens: dict[str, int]) -> None:
    """Changes both balances or neither; each row compares the token of its own lock."""
    database = sqlite3.connect(path, timeout=30)
    with database:
        for name, amount in amounts.items():
            token = tokens[name]
            if database.execute(ADD, (amount, token, name, token)).rowcount == 0:
                raise RuntimeError(f"refused: a newer token than {token} has written {name}")
    database.close()


def main(path: str = "accounts.db", transfers: str = "20") -> None:
    with sqlite3.connect(path) as database:
        database.execute(TABLE)
        database.executemany("INSERT OR IGNORE INTO accounts VALUES (?, 100, 0)", [(name,) for name in ACCOUNTS])
    client = Client(owner=f"transfer-{os.getpid()}")

    def transfer(number: int) -> None:
        giver, taker = random.sample(ACCOUNTS, 2)
        # Both or none, so that nobody waits in a circle.
        with client.lock_all([f"account/{giver}", f"account/{taker}"], wait=60, ttl=8) as (one, two):
            move(path, {giver: -10, taker: 10}, {giver: one.check(), taker: two.check()})
        print(f"10 from {giver} to {taker}", flush=True)

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(transfer, range(int(transfers))))
    (total,) = sqlite3.connect(path).execute("SELECT sum(balance) FROM accounts").fetchone()
    print(f"the total is {total}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
