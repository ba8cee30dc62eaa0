"""Shows who leads, until it is ended: the present leader, then each change."""

from fencepost import Client


def main() -> None:
    for leader in Client().election("leader").observe():
        if leader:
            print(f"{leader.candidate} leads at {leader.value}, token {leader.fencing_token}", flush=True)
        else:
            print("nobody leads", flush=True)


if __name__ == "__main__":
    main()
