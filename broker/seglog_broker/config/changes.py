"""What differs between two configurations of a broker, and how much of the new one a running broker takes."""

import dataclasses
from typing import NamedTuple

from seglog_broker.config.broker_config import BROKER_KEYS, BROKER_NAMES, BrokerConfig
from seglog_broker.config.keys import Origin
from seglog_broker.config.listener_keys import ListenerKey
from seglog_broker.config.listeners import listener_names
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
    """Every key whose value changed, keys for topic defaults and of single listeners included."""
    changed = [
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
    return changed + _of_listeners(old, new)


def _of_listeners(old: BrokerConfig, new: BrokerConfig) -> list[Difference]:
    """What changed for a listener that has, or had, a setting of its own for it."""
    found = {(own.listener, own.key.name) for own in (*old.listener_settings, *new.listener_settings)}
    origins = {(own.listener, own.key.name): own.origin for own in new.listener_settings}
    changed = []
    for listener, name in sorted(found):
        key = BROKER_KEYS[name]
        before, after = (getattr(config.of_listener(listener), key.attribute) for config in (old, new))
        if before != after:
            origin = origins.get((listener, name), new.origin(name))
            written = ListenerKey(listener, name).name
            changed.append(Difference(written, key.text(before), key.text(after), origin, key.is_dynamic))
    return changed


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
    names = listener_names(old)
    own = [each for each in old.listener_settings if not each.key.is_dynamic]
    own += [each for each in new.listener_settings if each.key.is_dynamic and each.listener in names]
    merged = dataclasses.replace(new, **values, listener_settings=tuple(own), origins=origins)
    check_broker_config(merged)
    return merged
