"""The keys that a group may have of its own, set at run time. Without them the broker's ``group.consumer...`` count.

As in Kafka a value must be between the broker's limits for it when it is set, and a session longer than the time
between two heartbeats. Kafka has more keys; nothing here would read them.
"""

import operator
from collections.abc import Mapping
from typing import Final

from seglog_broker.config.broker_config import BROKER_KEYS, BrokerConfig
from seglog_broker.config.kafka_configs import kafka_keys
from seglog_broker.config.keys import Key, Origin, OriginKind, Setting
from seglog_broker.config.values import Int
from seglog_protocol.errors import InvalidConfigError

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"

GROUP_KEYS: Final[Mapping[str, Key]] = {name: Key(Int(1), name=name) for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL)}
"""The keys of a group, by name."""

_WITHOUT_EFFECT: Final = {
    "consumer": "the broker assigns partitions as soon as they are to be assigned",
    "errors": "there are no share groups",
    "share": "there are no share groups",
    "streams": "there are no streams groups",
}
"""Why a key of Kafka's is refused, by its first word."""


def parse_group_value(name: str, text: str) -> int:
    """The value of a setting of a group in milliseconds. Raises InvalidConfigError, also for another key."""
    key = GROUP_KEYS.get(name)
    if key is None:
        if name not in kafka_keys("group"):
            raise InvalidConfigError(f"Unknown group config name: {name[:60]}", key=name)
        raise InvalidConfigError(f"{name} would have no effect: {_WITHOUT_EFFECT[name.partition('.')[0]]}", key=name)
    value = key.parse(Setting(name, text, Origin(OriginKind.DYNAMIC_GROUP, name)))
    assert isinstance(value, int)
    return value


def checked_group_settings(settings: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """The settings of a group as they are kept. Raises InvalidConfigError for those that ``config`` does not allow."""
    values = {name: parse_group_value(name, text) for name, text in settings.items()}
    for name, value in values.items():
        for bound, words, is_beyond in (("min", "greater", operator.lt), ("max", "less", operator.gt)):
            limit_name = f"group.consumer.{bound}.{name.removeprefix('consumer.')}"
            limit = getattr(config, BROKER_KEYS[limit_name].attribute)
            if is_beyond(value, limit):
                why = f"must be {words} than or equal to {limit_name}, which is {limit}"
                raise InvalidConfigError(f"{name} {why}", key=name)
    session_ms = values.get(SESSION_TIMEOUT, config.group_consumer_session_timeout_ms)
    heartbeat_ms = values.get(HEARTBEAT_INTERVAL, config.group_consumer_heartbeat_interval_ms)
    if values and session_ms <= heartbeat_ms:
        raise InvalidConfigError(
            f"{SESSION_TIMEOUT}, which is {session_ms}, must be greater than {HEARTBEAT_INTERVAL}, which is "
            f"{heartbeat_ms}",
            key=next(iter(values)),
        )
    return {name: str(value) for name, value in values.items()}
