"""The words of Kafka's requests about configuration: resources, entries with their synonyms, alterations.

Enumerations have Kafka's numbers, as they stand in DescribeConfigs and IncrementalAlterConfigs.
"""

from enum import IntEnum
from typing import NamedTuple


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
