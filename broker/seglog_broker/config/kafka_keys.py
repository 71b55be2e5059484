"""Apache Kafka's own configuration keys, with Kafka's types, defaults and documentation: what clients ask for by name.

The table is ``kafka_keys.jsonl``, which ``python -m tests.interop.kafka_keys`` derives from Kafka's jars. Of a key that
``topic_config`` or ``broker_config`` also has, value, range and effect are those given there. The file is read when it
is first needed, never at the start of the daemon.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec

Resource = Literal["topic", "broker", "group", "client_metrics"]
"""What keys belong to; the names of Kafka's own types of resource, in lower case."""

_TABLE: Final = Path(__file__).with_name("kafka_keys.jsonl")


class KafkaKey(msgspec.Struct, frozen=True):
    """One of Kafka's keys.

    ``type`` is Kafka's name of the type, such as LONG. ``default`` is None where Kafka has none. ``dynamic`` is Kafka's
    update mode of a broker key: per-broker, cluster-wide, or empty for one that it only reads at the start.
    ``synonyms`` are the broker keys that may set the value, strongest first; empty for a broker key without others.
    """

    resource: Resource
    name: str
    type: str
    doc: str
    default: str | None = None
    dynamic: str = ""
    synonyms: tuple[str, ...] = ()

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is never shown."""
        return self.type == "PASSWORD"


@cache
def kafka_keys(resource: Resource) -> Mapping[str, KafkaKey]:
    """The keys of a resource by name, in the order of their names."""
    return {key.name: key for key in _table() if key.resource == resource}


@cache
def _table() -> list[KafkaKey]:
    lines = _TABLE.read_bytes().splitlines()
    decoder = msgspec.json.Decoder(KafkaKey)
    return [decoder.decode(line) for line in lines[1:]]  # the first line is the notice
