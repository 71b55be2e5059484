"""Copies topic ``in`` to ``out`` with Quix Streams, and counts the records of each key in its state.

Arguments: the server, the transactional id, the records between two commits, the timeout of a transaction in seconds,
and a folder for state. A copy's value has the count behind it: the state is restored from a changelog, which is part of
the transactions.
"""

import sys

from quixstreams import Application, State

server, name, batch, seconds, folder = sys.argv[1:]


def counted(value: bytes, state: State) -> bytes:
    """The value, and how many records of its key there were."""
    count = state.get("count", 0) + 1
    state.set("count", count)
    return b"%s %d" % (value, count)


# By default librdkafka forgets the only node when it is away, and then waits for it for ever in a transaction.
node = {"metadata.recovery.strategy": "none"}
app = Application(
    broker_address=server,
    consumer_group="copiers",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_every=int(batch),
    commit_interval=1.0,
    state_dir=folder,
    producer_extra_config={"transactional.id": name, "transaction.timeout.ms": int(seconds) * 1000, **node},
    consumer_extra_config={"session.timeout.ms": 6000, **node},
)
copied = app.dataframe(app.topic("in", value_deserializer="bytes", key_deserializer="bytes"))
copied = copied.apply(counted, stateful=True)
copied.to_topic(app.topic("out", value_serializer="bytes", key_serializer="bytes"))
app.run()
