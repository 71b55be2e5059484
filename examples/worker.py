"""A worker that can be ended in any way, also by kill -9, and goes on where it was.

    python examples/worker.py totals.json

It adds up the numbers of each key. What it has worked out and its positions in the topic are one file, replaced in one
step. So each record counts exactly once: what was done since the last save is forgotten together with the positions,
and done again. A worker whose results go to a database keeps its positions there, in the same transaction.

The broker and the account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile.
"""

import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import seglog

TOPIC = "readings"
SAVE_EVERY = 1000
"""Records after which the worker saves, also when there is more to do."""


def load(path: Path) -> tuple[Counter[str], dict[int, int]]:
    """The sums by key and the positions as they were saved; nothing of both at the first start."""
    if not path.exists():
        return Counter(), {}
    saved = json.loads(path.read_text(encoding="utf-8"))
    return Counter(saved["totals"]), {int(partition): offset for partition, offset in saved["positions"].items()}


def save(path: Path, totals: Counter[str], positions: dict[int, int]) -> None:
    """Replace the file in one step, its bytes on the disk before."""
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump({"totals": totals, "positions": positions}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def main(path: Path) -> None:
    """Work until ended."""
    totals, positions = load(path)
    # durable_only: a record that a power cut could still take from the broker is not counted yet.
    with (
        seglog.connect() as client,
        client.consumer(TOPIC, start=positions or "earliest", follow=True, durable_only=True) as consumer,
    ):
        unsaved = 0
        for record in consumer:
            totals[(record.key or b"").decode()] += int(record.value or b"0")
            unsaved += 1
            if unsaved == SAVE_EVERY or not any(consumer.records_behind().values()):
                save(path, totals, consumer.positions())
                unsaved = 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/worker.py FILE")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a service manager sends ends it as Ctrl-C does
    with suppress(KeyboardInterrupt):
        main(Path(sys.argv[1]))
