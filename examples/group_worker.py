"""A worker of a group: start as many as you like; each does its share, and goes on where the group was.

    python examples/group_worker.py

Ctrl-C and SIGTERM end it: it commits what it has done, and the others have its share at once. Where it is killed in any
other way, what it had not committed is done once more, by itself when it is started again or by another one. The broker
and the account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile.
"""

import signal
from contextlib import suppress

import seglog


def main() -> None:
    """Work until ended."""
    with seglog.connect() as client, client.consumer("readings", group="workers", session_timeout=6) as consumer:
        for record in consumer:
            # The record counts as done when the loop comes back for the next one.
            print(record.partition, record.offset, (record.value or b"").decode(), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a service manager sends ends it as Ctrl-C does
    with suppress(KeyboardInterrupt):
        main()
