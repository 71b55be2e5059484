"""A worker of a group: start as many as you like; each does its share, and goes on where the group was.

    python examples/group_worker.py

Kill it in any way and start it again: what it had not committed is done once more, by itself or by another one. The
broker is the one that SEGLOG_SERVER names, or localhost:9192.
"""

import os
from contextlib import suppress

import seglog

SERVER = os.environ.get("SEGLOG_SERVER", "localhost:9192")


def main() -> None:
    """Work until ended."""
    with seglog.connect(SERVER) as client, client.consumer("readings", group="workers", session_timeout=6) as consumer:
        for record in consumer:
            # The record counts as done when the loop comes back for the next one.
            print(record.partition, record.offset, (record.value or b"").decode(), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
