"""Configuration as Kafka's clients see it: every key of a topic or of the broker, with value, source and synonyms.

Keys come from Kafka's own table, and after them seglog's. Where seglog has a key, value and default are seglog's; a key
that only Kafka has is shown with Kafka's default, and has no effect. A value is read-only here if no Kafka client can
change it: settings of topics can be changed, of brokers those that need no restart, of groups those that are read.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from seglog_broker.config import BrokerConfig, Origin, OriginKind, dynamic_config
from seglog_broker.config.broker_config import BROKER_NAMES, CONFIG_NAMES, TOPIC_DEFAULT_NAMES
from seglog_broker.config.group_keys import GROUP_KEYS
from seglog_broker.config.kafka_configs import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    KafkaKey,
    kafka_keys,
)
from seglog_broker.config.keys import DEFAULT_ORIGIN, Effect, Key
from seglog_broker.config.sources import variable_of
from seglog_broker.config.topic_config import TOPIC_KEYS
from seglog_broker.config.values import Value
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_protocol.errors import InvalidRequestError, InvalidTopicError

ROOT_LOGGER: Final = "root"
"""The one logger of a seglog broker; its level is that of ``seglog.log.level``."""

_LOGGER_LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
_ONE_NODE: Final = {
    "process.roles": "broker,controller",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}
"""Values of a cluster of one node, where Kafka's defaults are those of three."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def describe_topic(own: Mapping[str, str], config: LiveConfig, names: Collection[str] = ()) -> list[ConfigEntry]:
    """The configuration of a topic with the settings ``own``, in the order of names; of ``names`` alone where given."""
    values = config.current.topic_config(own)
    broker = _BrokerValues(config, {})
    entries = []
    known = kafka_keys("topic")
    for key in TOPIC_KEYS.values():
        if not _is_wanted(key.name, names):
            continue
        kafka = known.get(key.name)
        value = key.text(getattr(values, key.attribute))
        broker_names = [synonym.name for synonym in key.synonyms] if kafka is None else kafka.synonyms
        synonyms = broker.synonyms(broker_names, broker_names[0]) if broker_names else []
        if key.name in own:
            synonyms.insert(0, ConfigSynonym(key.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        entries.append(_entry(key.name, value, kafka, key, synonyms, is_read_only=False))
    return sorted(entries)


def describe_broker(
    config: LiveConfig, names: Collection[str] = (), *, actual: Mapping[str, str] | None = None
) -> list[ConfigEntry]:
    """The configuration of this broker, in the order of names; of ``names`` alone where given.

    ``actual`` are values that the process knows better than its configuration, such as ``advertised.listeners``.
    """
    known = kafka_keys("broker")
    node_id = str(config.static.node_id)
    facts = {"node.id": node_id, "broker.id": node_id, **_ONE_NODE, **(actual or {})}
    broker = _BrokerValues(config, facts)
    entries = []
    for name in (*known, *sorted(CONFIG_NAMES - known.keys())):
        if _is_wanted(name, names):
            kafka = known.get(name)
            synonyms = broker.synonyms((kafka and kafka.synonyms) or (name,), name)
            is_read_only = name not in dynamic_config.SETTABLE
            entries.append(_entry(name, broker.value(name), kafka, _key_of(name), synonyms, is_read_only=is_read_only))
    return sorted(entries)


def describe_all_brokers(config: LiveConfig, names: Collection[str] = ()) -> list[ConfigEntry]:
    """The settings made at run time for all brokers, in the order of names; of ``names`` alone where given."""
    known = kafka_keys("broker")
    entries = []
    for name, value in _of_all_brokers(config).items():
        if _is_wanted(name, names):
            synonym = ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            entries.append(
                _entry(name, value, known.get(name), dynamic_config.DYNAMIC_KEYS[name], [synonym], is_read_only=False)
            )
    return sorted(entries)


def _of_all_brokers(config: LiveConfig) -> dynamic_config.Settings:
    """The settings of all brokers, with the one that is always set."""
    replicas = {dynamic_config.FOR_ALL_BROKERS: str(config.static.topic_defaults.min_insync_replicas)}
    return {**replicas, **config.dynamic.of_broker(dynamic_config.ALL_BROKERS)}


def describe_group(group: str, config: LiveConfig, names: Collection[str] = ()) -> list[ConfigEntry]:
    """The configuration of a group, there or not, in the order of names; of ``names`` alone where given."""
    broker = _BrokerValues(config, {})
    own = config.dynamic.of_group(group)
    entries = []
    for name, kafka in kafka_keys("group").items():
        if _is_wanted(name, names):
            synonyms = broker.synonyms(kafka.synonyms, kafka.synonyms[0]) if kafka.synonyms else []
            if not synonyms:
                synonyms = [ConfigSynonym(name, kafka.default, ConfigSource.DEFAULT_CONFIG)]
            if name in own:
                synonyms.insert(0, ConfigSynonym(name, own[name], ConfigSource.GROUP_CONFIG))
            value, is_read_only = synonyms[0].value, name not in GROUP_KEYS
            entries.append(_entry(name, value, kafka, None, synonyms, is_read_only=is_read_only))
    return entries


def describe_client_metrics(names: Collection[str] = ()) -> list[ConfigEntry]:
    """The configuration of client metrics: the defaults, because no other can be set."""
    return [
        _entry(name, kafka.default, kafka, None, [], is_read_only=True)
        for name, kafka in kafka_keys("client_metrics").items()
        if _is_wanted(name, names)
    ]


def describe_loggers(config: BrokerConfig, names: Collection[str] = ()) -> list[ConfigEntry]:
    """The loggers of this broker, of which there is one."""
    if not _is_wanted(ROOT_LOGGER, names):
        return []
    level = _LOGGER_LEVELS[config.seglog_log_level]
    return [
        ConfigEntry(
            ROOT_LOGGER, level, ConfigType.UNKNOWN, ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, True, False, (), ""
        )
    ]


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError for a name that no topic can have."""
    problem = why_invalid_topic(name)
    if problem is not None:
        raise InvalidTopicError(f"{name[:60]!r} cannot be a topic's name: {problem}", topic=name[:60])


def broker_number(name: str, node_id: int) -> int:
    """The number of this broker, if ``name`` is that. Raises InvalidRequestError."""
    if not _NUMBER.fullmatch(name):
        raise InvalidRequestError(f"Broker id must be an integer, but it is: {name[:60]}")
    if int(name) != node_id:
        raise InvalidRequestError(f"Unexpected broker id, expected {node_id} but received {int(name)}")
    return node_id


def unknown_resource(resource: int) -> InvalidRequestError:
    """The error for a type of resource that has no configuration."""
    return InvalidRequestError(f"Unknown resource type {resource}")


class _BrokerValues:
    """The values of broker keys, by name: set at run time, then ``facts``, then seglog's, then defaults."""

    def __init__(self, config: LiveConfig, facts: Mapping[str, str]) -> None:
        self._config = config.static
        self._facts = facts
        self._known = kafka_keys("broker")
        own, of_all = config.dynamic.of_broker(str(config.static.node_id)), _of_all_brokers(config)
        self._layers: Sequence[tuple[Callable[[str], str | None], ConfigSource]] = (
            (own.get, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (of_all.get, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self._written, ConfigSource.STATIC_BROKER_CONFIG),
            (self._default, ConfigSource.DEFAULT_CONFIG),
        )

    def value(self, name: str) -> str | None:
        """The value in force under this very name; None if it has none, as ``log.retention.ms`` by default."""
        return next((value for value_of, _ in self._layers if (value := value_of(name)) is not None), None)

    def synonyms(self, names: Sequence[str], described: str) -> list[ConfigSynonym]:
        """The values under ``names``, those that are set first; ``described`` is one of them.

        As in Kafka the list begins with the name that is described, or is empty: ``log.retention.ms`` has no synonyms
        where only ``log.retention.hours`` is set.
        """
        found = [
            ConfigSynonym(name, value, source)
            for value_of, source in self._layers
            for name in names
            if (value := value_of(name)) is not None
        ]
        return list(dropwhile(lambda synonym: synonym.name != described, found))

    def _written(self, name: str) -> str | None:
        """The value that was set under this name; None if none was. Of several names the strongest one is known."""
        if name in self._facts:
            return self._facts[name]
        key = _key_of(name)
        if key is None:
            return None
        if not key.is_topic_key:
            is_set = self._config.origin(name) != DEFAULT_ORIGIN
            return key.text(getattr(self._config, key.attribute)) if is_set else None
        defaults = self._config.topic_defaults
        if not _was_written_as(name, key, defaults.origin(key.name)):
            return None
        return _text_under(name, getattr(defaults, key.attribute))

    def _default(self, name: str) -> str | None:
        key = _key_of(name)
        is_kafkas = key is None or key.is_topic_key or key.effect is Effect.NEVER or name in self._facts
        if name in self._known and is_kafkas:
            return self._known[name].default
        if key is None:
            return None
        return _text_under(name, key.default) if key.is_topic_key else key.text(key.default)


def _key_of(name: str) -> Key | None:
    """The key of seglog that a broker-wide name belongs to: perhaps a topic key, whose default it sets; or None."""
    return BROKER_NAMES[name] if name in BROKER_NAMES else TOPIC_DEFAULT_NAMES.get(name, (None,))[0]


def _text_under(name: str, value: Value) -> str:
    """The value of a topic key as text in the unit of its broker-wide name: 24 for a day under log.retention.hours."""
    key, synonym = TOPIC_DEFAULT_NAMES[name]
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        value //= synonym.factor
    return key.text(value)


def _was_written_as(name: str, key: Key, origin: Origin) -> bool:
    """Whether the value of a topic key with this origin was set under this broker-wide name."""
    if len(key.synonyms) == 1:
        return origin != DEFAULT_ORIGIN
    match origin.kind:
        case OriginKind.FILE:
            return origin.where.endswith(f': "{name}"')
        case OriginKind.ENVIRONMENT:
            return origin.where == variable_of(name)
        case OriginKind.FLAG:
            return origin.where == f"--set {name}"
        case _:
            return False


def _entry(
    name: str,
    value: str | None,
    kafka: KafkaKey | None,
    key: Key | None,
    synonyms: Sequence[ConfigSynonym],
    *,
    is_read_only: bool,
) -> ConfigEntry:
    """An entry from Kafka's description of a key, or, for a key of seglog's own, from seglog's."""
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    if kafka is None:
        assert key is not None
        kind = ConfigType[key.kind.type_name.upper()]
        return ConfigEntry(name, value, kind, source, is_read_only, False, tuple(synonyms), key.doc)
    if kafka.default is None and not value:
        value, synonyms = None, [synonym for synonym in synonyms if synonym.value]  # as a key that is not set
    if kafka.is_sensitive:
        value, synonyms = None, [synonym._replace(value=None) for synonym in synonyms]
    kind = ConfigType[kafka.type]
    return ConfigEntry(name, value, kind, source, is_read_only, kafka.is_sensitive, tuple(synonyms), kafka.doc)


def _is_wanted(name: str, names: Collection[str]) -> bool:
    return not names or name in names
