"""Copies topic ``in`` to ``out`` with Bytewax, and counts the records of each key. Arguments: the server, and a folder.

A copy's value has the count behind it. Counts and offsets are kept together in the folder, of which a start goes on.
"""

import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

server, folder = sys.argv[1], Path(sys.argv[2])


def counted(count: int | None, record: KafkaSourceMessage) -> tuple[int, KafkaSinkMessage]:
    """How many records of this key there were, and the copy of this one."""
    count = (count or 0) + 1
    return count, KafkaSinkMessage(record.key, b"%s %d" % (record.value, count))


flow = Dataflow("copier")
records = op.input("in", flow, KafkaSource([server], ["in"], batch_size=50))
by_key = op.key_on("by key", records, lambda record: record.key.decode())
copies = op.map("without key", op.stateful_map("counted", by_key, counted), lambda pair: pair[1])
# By default a record is lost after 5 minutes without a broker, and without an error.
op.output("out", copies, KafkaSink([server], "out", {"message.timeout.ms": "0"}))

if __name__ == "__main__":
    if not folder.exists():
        made = folder.with_suffix(".new")
        made.mkdir(exist_ok=True)
        init_db_dir(made, 1)
        made.rename(folder)
    cli_main(flow, epoch_interval=timedelta(seconds=0.2), recovery_config=RecoveryConfig(folder))
