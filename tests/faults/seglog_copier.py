"""Copies topic ``in`` to ``out`` exactly once, with seglog's own client: a transaction for each few records.

A process of its own: ``python seglog_copier.py ADDRESS TRANSACTIONAL_ID BATCH``. It does as docs/CLIENT.md says: work
that was aborted is done again, an unanswered end is asked for again, and any other error ends it: whoever runs it
starts it again.
"""

import sys
import time
from itertools import islice

import seglog

SECONDS = 20


def main(address: str, name: str, batch: int) -> None:
    with seglog.connect(address, connect_timeout=60) as client:
        txn = client.transaction(name, timeout=SECONDS)
        with client.consumer(
            "in", group="copiers", auto_commit=False, follow=False, instance_id=name, session_timeout=6
        ) as consumer:
            while True:
                try:
                    if not copied(txn, consumer, batch):
                        time.sleep(0.1)
                except seglog.TransactionAborted:
                    consumer.rewind()
                except seglog.TransactionUnanswered:
                    txn.commit()


def copied(txn: seglog.Transaction, consumer: seglog.GroupConsumer, batch: int) -> int:
    """Copy so many records at most, in a transaction; how many there were."""
    with txn:
        count = 0
        for record in islice(consumer, batch):
            txn.send("out", record.value, record.key, partition=record.partition)
            count += 1
        txn.commit_offsets(consumer)
    return count


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
