"""Copies topic ``in`` to ``out`` exactly once, with seglog's own client: a transaction for each batch that it reads.

A process of its own: ``python seglog_copier.py ADDRESS TRANSACTIONAL_ID [RECORDS]``. It does as docs/CLIENT.md says:
work that was aborted is done again, an unanswered end is asked for again, and any other error ends it: whoever runs it
starts it again. With RECORDS a transaction has so many of them at most, of one loop that never ends, and the member has
no id of its own, so that each death is a rebalance, which comes within transactions.
"""

import sys
import time
from collections.abc import Iterator

import seglog

SECONDS = 20


def main(address: str, name: str, records: str = "0") -> None:
    with seglog.connect(address, connect_timeout=60) as client:
        txn = client.transaction(name, timeout=SECONDS)
        instance_id = None if int(records) else name
        with client.consumer(
            "in", group="copiers", auto_commit=False, instance_id=instance_id, session_timeout=6
        ) as consumer:
            endless = iter(consumer)
            while True:
                try:
                    if int(records):
                        copy_some(txn, consumer, endless, int(records))
                    else:
                        copy(txn, consumer)
                except (seglog.TransactionAborted, seglog.GroupError):
                    consumer.rewind()
                except seglog.TransactionUnanswered:
                    txn.commit()


def copy(txn: seglog.Transaction, consumer: seglog.GroupConsumer) -> None:
    """Copy whatever comes, until an error."""
    for batch in consumer.batches():
        with txn:
            for record in batch.records():
                txn.send("out", record.value, record.key, partition=record.partition)
            txn.commit_offsets(consumer)


def copy_some(
    txn: seglog.Transaction, consumer: seglog.GroupConsumer, endless: Iterator[seglog.Record], count: int
) -> None:
    """Copy so many records, or fewer where no other one is there."""
    with txn:
        for record in endless:
            time.sleep(0.002)  # so that nearly all of its life is within transactions
            txn.send("out", record.value, record.key, partition=record.partition)
            count -= 1
            if not count or not any(consumer.records_behind().values()):
                break
        txn.commit_offsets(consumer)


if __name__ == "__main__":
    main(*sys.argv[1:])
