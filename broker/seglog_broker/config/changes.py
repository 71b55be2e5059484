"""What differs between two configurations of a broker, and how much of the new one a running broker takes."""

import dataclasses
from typing import NamedTuple

from seglog_broker.config.broker_config import BROKER_KEYS, BROKER_NAMES, BrokerConfig
from seglog_broker.config.keys import Origin
from seglog_broker.config.sources import check_broker_config


class Difference(NamedTuple):
    """One key with two values, as Kafka writes them."""

    key: str
    old: str
    new: str
    origin: Origin
    """Of the new one."""
    is_dynamic: bool
    """Whether a running broker applies it; otherwise a restart is needed."""


def differences(old: BrokerConfig, new: BrokerConfig) -> list[Difference]:
    """Every key whose value changed, keys for topic defaults included."""
    return [
        Difference(
            after.key,
            before.value,
            after.value,
            after.origin,
            after.key not in BROKER_NAMES or BROKER_NAMES[after.key].is_dynamic,
        )
        for before, after in zip(old.describe(), new.describe(), strict=True)
        if before.value != after.value or _value(old, before.key) != _value(new, after.key)  # secrets are shown alike
    ]


def _value(config: BrokerConfig, name: str) -> object:
    """The value of a broker key; None of one for a topic default."""
    return getattr(config, BROKER_KEYS[name].attribute) if name in BROKER_KEYS else None


def taken_over(old: BrokerConfig, new: BrokerConfig) -> BrokerConfig:
    """The configuration of a running broker with ``old`` after a reload of ``new``: static keys keep their values.

    Raises InvalidConfigError when the mixture contradicts itself, though neither of the two does.
    """
    kept = [key for key in BROKER_KEYS.values() if not key.is_dynamic]
    values = {key.attribute: getattr(old, key.attribute) for key in kept}
    origins = dict(new.origins)
    for key in kept:
        if values[key.attribute] != getattr(new, key.attribute):
            origins.pop(key.name, None)
            if key.name in old.origins:
                origins[key.name] = old.origins[key.name]
    merged = dataclasses.replace(new, **values, origins=origins)
    check_broker_config(merged)
    return merged
