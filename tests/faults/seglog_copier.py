"""Copies topic ``in`` to ``out`` exactly once, with seglog's own client: a transaction for each batch that it reads.

A process of its own: ``python seglog_copier.py ADDRESS TRANSACTIONAL_ID``. It does as docs/CLIENT.md says: work that
was aborted is done again, an unanswered end is asked for again, and any other error ends it: whoever runs it starts it
again.
"""

import sys

import seglog

SECONDS = 20


def main(address: str, name: str) -> None:
    with seglog.connect(address, connect_timeout=60) as client:
        txn = client.transaction(name, timeout=SECONDS)
        with client.consumer("in", group="copiers", auto_commit=False, instance_id=name, session_timeout=6) as consumer:
            while True:
                try:
                    copy(txn, consumer)
                except seglog.TransactionAborted:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
