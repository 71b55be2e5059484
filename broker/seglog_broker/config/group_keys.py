"""The keys of a group: what they may be, what brokers allow, and the values in force.

A group may have settings of its own; without them the broker's key of the same name, with ``group.`` before it, counts
where there is one. As in Kafka a value must be between the broker's limits when it is set, and a session longer than
the time between two heartbeats; where limits change later, the nearest value that they allow is in force.
Kafka has more such keys; nothing here would read them.
"""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from seglog_broker.config.broker_config import BROKER_KEYS, BrokerConfig
from seglog_broker.config.kafka_configs import kafka_keys
from seglog_broker.config.keys import Key, Origin, OriginKind, Setting
from seglog_broker.config.values import Boolean, Int, Kind, Raw, Text, Value
from seglog_protocol.errors import InvalidConfigError

_DURATION: Final = re.compile(
    r"([-+]?)P(?=.)(?:([-+]?\d{1,15})D)?(?:T(?=.)(?:([-+]?\d{1,15})H)?(?:([-+]?\d{1,15})M)?"
    r"(?:([-+]?)(\d{1,15})(?:[.,](\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_BY_DURATION: Final = "by_duration:"


def offset_reset(text: str) -> Literal["earliest", "latest"] | int:
    """The offset at which a share group begins: an end of the log, or that of records so many ms old at most.

    Raises ValueError ("must be ...") for another value of ``share.auto.offset.reset``. A duration is one of Java's.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    found = _DURATION.fullmatch(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else None
    if found is not None:
        sign, days, hours, minutes, sign_of_seconds, seconds, fraction = found.groups(default="")
        ms = int(seconds or 0) * 1000 + int(f"{fraction}000"[:3])
        ms = (-ms if sign_of_seconds == "-" else ms) + int(minutes or 0) * 60_000
        ms += int(hours or 0) * 3_600_000 + int(days or 0) * 86_400_000
        ms = -ms if sign == "-" else ms
        if ms >= 0:
            return ms
    raise ValueError("must be earliest, latest, or by_duration:PnDTnHnMn.nS, as in by_duration:PT12H")


@dataclass(frozen=True, slots=True)
class OffsetReset(Kind):
    """The text of ``share.auto.offset.reset``."""

    valid = "earliest, latest, by_duration:PnDTnHnMn.nS"

    def parse(self, raw: Raw) -> str:
        """The text, which names an offset. Raises ValueError for another one."""
        value = Text().parse(raw)
        offset_reset(value)
        return value


class TopicOfDeadLetters(Text):
    """The name of a topic for dead letters; empty for none."""

    def parse(self, raw: Raw) -> str:
        """The name. Raises ValueError for that of an internal topic."""
        value = super().parse(raw)
        if value.startswith("__"):
            raise ValueError("must not start with '__'")
        return value


def _key(name: str, kind: Kind, default: Value) -> Key:
    return Key(kind, name=name, default=default)


GROUP_KEYS: Final[Mapping[str, Key]] = {
    key.name: key
    for key in (
        _key("consumer.session.timeout.ms", Int(1), 45_000),
        _key("consumer.heartbeat.interval.ms", Int(1), 5_000),
        _key("share.session.timeout.ms", Int(1), 45_000),
        _key("share.heartbeat.interval.ms", Int(1), 5_000),
        _key("share.assignment.interval.ms", Int(0), 1_000),
        _key("share.record.lock.duration.ms", Int(1_000), 30_000),
        _key("share.delivery.count.limit", Int(2), 5),
        _key("share.partition.max.record.locks", Int(100), 2_000),
        _key("share.auto.offset.reset", OffsetReset(), "latest"),
        _key("share.isolation.level", Text(("read_committed", "read_uncommitted")), "read_uncommitted"),
        _key("share.renew.acknowledge.enable", Boolean(), True),
        _key("errors.deadletterqueue.topic.name", TopicOfDeadLetters(), ""),
        _key("errors.deadletterqueue.copy.record.enable", Boolean(), False),
    )
}
"""The keys of a group, by name."""

_PROTOCOLS: Final = "consumer", "share"
"""The first words of keys with limits."""

_WITHOUT_EFFECT: Final = {
    "consumer": "the broker assigns partitions as soon as they are to be assigned",
    "streams": "there are no streams groups",
}
"""Why a key of Kafka's is refused, by its first word."""


def parse_group_value(name: str, text: str) -> Value:
    """The value of a setting of a group. Raises InvalidConfigError, also for another key."""
    key = GROUP_KEYS.get(name)
    if key is None:
        if name not in kafka_keys("group"):
            raise InvalidConfigError(f"Unknown group config name: {name[:60]}", key=name)
        raise InvalidConfigError(f"{name} would have no effect: {_WITHOUT_EFFECT[name.partition('.')[0]]}", key=name)
    return key.parse(Setting(name, text, Origin(OriginKind.DYNAMIC_GROUP, name)))


def checked_group_settings(settings: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """The settings of a group as they are kept. Raises InvalidConfigError for those that ``config`` does not allow."""
    values = {name: parse_group_value(name, text) for name, text in settings.items()}
    for name, value in values.items():
        for bound, words, is_beyond in (("min", "greater", operator.lt), ("max", "less", operator.gt)):
            limit_name = _limit_name(name, bound)
            if limit_name in BROKER_KEYS and is_beyond(value, limit := _of_broker(limit_name, config)):
                why = f"must be {words} than or equal to {limit_name}, which is {limit}"
                raise InvalidConfigError(f"{name} {why}", key=name)
    for protocol in _PROTOCOLS:
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        own = values.keys() & {session, heartbeat}
        session_ms, heartbeat_ms = (
            values.get(name, _of_broker(f"group.{name}", config)) for name in (session, heartbeat)
        )
        if own and session_ms <= heartbeat_ms:
            raise InvalidConfigError(
                f"{session}, which is {session_ms}, must be greater than {heartbeat}, which is {heartbeat_ms}",
                key=min(own),
            )
    return {name: GROUP_KEYS[name].text(value) for name, value in values.items()}


def group_value(name: str, own: Mapping[str, str], config: BrokerConfig) -> Any:
    """The value in force of a key, which is of its kind, for a group with the settings ``own``."""
    if name not in own:
        of_brokers = f"group.{name}"
        return _of_broker(of_brokers, config) if of_brokers in BROKER_KEYS else GROUP_KEYS[name].default
    value: Any = parse_group_value(name, own[name])
    least, most = _limit_name(name, "min"), _limit_name(name, "max")
    if least in BROKER_KEYS:
        value = min(max(value, _of_broker(least, config)), _of_broker(most, config))
    return value


def _limit_name(name: str, bound: str) -> str:
    protocol, _, rest = name.partition(".")
    return f"group.{protocol}.{bound}.{rest}"


def _of_broker(name: str, config: BrokerConfig) -> Any:
    return getattr(config, BROKER_KEYS[name].attribute)
