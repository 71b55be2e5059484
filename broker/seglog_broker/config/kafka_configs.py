"""The words of Kafka's requests about configuration, and Kafka's own keys with their types, defaults and documentation.

Enumerations have Kafka's numbers, as they stand in DescribeConfigs and IncrementalAlterConfigs.

The table is ``kafka_keys.jsonl``, which ``python -m tests.interop.kafka_keys`` derives from Kafka's jars. Of a key that
``topic_config`` or ``broker_config`` also has, value, range and effect are those given there. The file is read when it
is first needed, never at the start of the daemon.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec


class ResourceType(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigType(IntEnum):
    """The type of a key; a logger has none."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from. seglog has no settings of client metrics."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    """A name under which a value may be set, and the value there."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One key with its value; None for a value that is not set, or not to be shown.

    ``synonyms`` are the values that count or would count if the stronger ones were not set, strongest first.
    """

    name: str
    value: str | None
    type: ConfigType
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    documentation: str


class Operation(IntEnum):
    """What an alteration does, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One alteration of a request; ``operation`` is a number that a client sent, perhaps no Operation.

    AlterConfigs has only SET. The value of a DELETE is not looked at.
    """

    name: str
    operation: int
    value: str | None = None


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
