"""A member of a group with confluent-kafka, until SIGTERM. Arguments: settings as JSON, topics.

An only topic that begins with ``^`` is a regular expression. Each record that it reads is a line of JSON,
``{"record": [topic, partition, offset]}``, and so is all that it is assigned, whenever that changes:
``{"assigned": [[topic, partition], ...]}``.
"""

import json
import signal
import sys
from typing import Any

from confluent_kafka import Consumer


def main() -> None:
    settings, *topics = sys.argv[1:]
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    consumer = Consumer(json.loads(settings))
    consumer.subscribe(topics)
    told = None
    while not ends:
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            say("record", [record.topic(), record.partition(), record.offset()])
        assigned = sorted((place.topic, place.partition) for place in consumer.assignment())
        if assigned != told:
            say("assigned", assigned)
            told = assigned
    consumer.close()


def say(what: str, value: Any) -> None:
    print(json.dumps({what: value}), flush=True)


main()
