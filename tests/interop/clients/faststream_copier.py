"""Copies topic ``in`` to ``out`` with FastStream. Arguments: the server, and what is below it: aiokafka, confluent."""

import asyncio
import importlib
import sys
from typing import Any

from faststream import AckPolicy, FastStream

server, client = sys.argv[1:]
package: Any = importlib.import_module({"aiokafka": "faststream.kafka", "confluent": "faststream.confluent"}[client])
broker = package.KafkaBroker(server)


async def as_it_is(message: Any) -> bytes:
    """The value of a record, which FastStream would read as JSON."""
    body: bytes = message.body
    return body


async def copy(value: bytes) -> bytes:
    """What comes of a record."""
    return value


subscribed = broker.subscriber(
    "in", group_id="copiers", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR, decoder=as_it_is
)
subscribed(broker.publisher("out")(copy))


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run())
