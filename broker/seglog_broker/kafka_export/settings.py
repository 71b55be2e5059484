"""Settings as Kafka 4 takes them: what it does not know is left out, what it would refuse at its start is changed.

A topic whose setting Kafka refuses ends the start of the whole Kafka, so each change is named.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.config.kafka_configs import Resource, kafka_keys
from seglog_broker.config.keys import WRITTEN
from seglog_broker.config.topic_config import SEGMENT_BYTES_MIN_KAFKA, TOPIC_NAMES
from seglog_broker.storage.directory.topic_registry import Topic

Settings = Mapping[str, str]

_SEGMENT_BYTES: Final = frozenset({"segment.bytes", "log.segment.bytes"})
_OF_THE_MACHINE: Final = (
    "advertised.",
    "allow.everyone.",
    "authorizer.",
    "broker.",
    "control",
    "early.start.listeners",
    "inter.broker.",
    "listener",
    "log.dir",
    "metadata.log.dir",
    "node.id",
    "password.",
    "principal.",
    "process.roles",
    "sasl.",
    "security.",
    "ssl.",
    "super.users",
)
"""How keys begin that say where and how a broker is reached, and by whom: those are chosen anew for Kafka."""


class Fitted(NamedTuple):
    """Settings that Kafka takes, and as sentences what had to be changed or left out."""

    settings: dict[str, str]
    changes: list[str]


def of_topic(topic: Topic) -> Fitted:
    """The settings of a topic, with those of Kafka's that seglog has kept without knowing them."""
    kept = {key: value for key, value in topic.kafka_config.items() if key not in TOPIC_NAMES}
    return _fit(f"topic {topic.name}", "topic", {**kept, **topic.config})


def of_brokers(dynamic: DynamicConfig, name: str) -> Fitted:
    """The settings that were made at run time for the broker of that number, or for ``ALL_BROKERS``."""
    of, settings, known = f"broker {name}" if name else "all brokers", dynamic.of_broker(name), kafka_keys("broker")
    fixed = {
        key: value
        for key, value in settings.items()
        if key in known and not known[key].dynamic and not key.startswith(_OF_THE_MACHINE)
    }
    fitted = _fit(of, "broker", {key: value for key, value in settings.items() if key not in fixed})
    fitted.changes.extend(
        f"{of}: {key}={value} is left out, Kafka sets it in its file alone" for key, value in sorted(fixed.items())
    )
    return fitted


def of_group(dynamic: DynamicConfig, group: str) -> Fitted:
    """The settings that were made at run time for a group."""
    return _fit(f"group {group}", "group", dynamic.of_group(group))


def of_file(config: BrokerConfig) -> Fitted:
    """What file, environment and flags set, but for where the broker is reached and by whom."""
    written = {
        line.key: line.value
        for line in config.describe()
        if line.origin.kind in WRITTEN and not line.key.startswith((*_OF_THE_MACHINE, "seglog."))
    }
    return _fit("the configuration", "broker", written)


def _fit(of: str, resource: Resource, settings: Settings) -> Fitted:
    known = kafka_keys(resource)
    fitted = Fitted({}, [])
    for key, value in sorted(settings.items()):
        if resource == "broker" and key.startswith(_OF_THE_MACHINE):
            fitted.changes.append(f"{of}: {key} is left out, it is chosen anew for Kafka")
            continue
        if key not in known:
            fitted.changes.append(f"{of}: {key}={value} is left out, Kafka has no such key")
            continue
        taken, why = _taken(key, value)
        if taken is None:
            fitted.changes.append(f"{of}: {key}={value} is left out, {why}")
            continue
        if taken != value:
            fitted.changes.append(f"{of}: {key} is {taken} instead of {value}, {why}")
        fitted.settings[key] = taken
    return fitted


def _taken(key: str, value: str) -> tuple[str | None, str]:
    """The value that Kafka takes, None for none, and why it is another one."""
    if key in _SEGMENT_BYTES and int(value) < SEGMENT_BYTES_MIN_KAFKA:
        return str(SEGMENT_BYTES_MIN_KAFKA), "the least that Kafka 4 starts with"
    if key == "min.insync.replicas" and int(value) > 1:
        return "1", "because each partition has one replica at first: raise it when there are more"
    if key == "remote.storage.enable" and value == "true":
        return None, "because Kafka does not start with it while it has no remote storage"
    return value, ""


def encode_properties(settings: Iterable[tuple[str, str]]) -> str:
    """Lines of a Java properties file, which is read as ISO 8859-1."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in settings)


def _escaped(value: str) -> str:
    text = (
        value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    escaped = "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
