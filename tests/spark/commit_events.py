"""Events of 13 years that are no part of the project, in a topic whose partitions are at different times."""

import gzip
import json
from collections.abc import Sequence
from typing import Any

from seglog.client import Client
from tests.support import shared_data

PARTITIONS = {"core": 0, "streams": 1}
"""Of the first folder of a path; all others are in partition 2."""


def commit_events() -> list[dict[str, Any]]:
    """The events, in the order in which they were merged."""
    with gzip.open(shared_data("commit-events.jsonl.gz")) as lines:
        return [json.loads(line) for line in lines]


def partition_of(event: dict[str, Any]) -> int:
    return PARTITIONS.get(event["path"].partition("/")[0], 2)


def produce(client: Client, topic: str, events: Sequence[dict[str, Any]]) -> None:
    client.create_topic(topic, partitions=3, config={"retention.ms": -1, "segment.ms": 1 << 40})
    with client.producer(topic, ack="os") as producer:
        for event in events:
            producer.send(json.dumps(event), timestamp=event["ts"], partition=partition_of(event))
