"""Settings made at run time, how they lie over file, environment and flags, and what of a change takes effect.

A setting is a key and its value as Kafka writes it. ``with_dynamic`` is the one place that puts those of brokers over
the rest: of one broker before those of all brokers, before flags, environment, file and defaults.

Those of a group have keys of their own; see ``group_keys``. So have quotas of clients: ``seglog_protocol.quotas``.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog_broker.config import broker_config
from seglog_broker.config.kafka_configs import kafka_keys
from seglog_broker.config.keys import Change, Effect, Key, Origin, OriginKind, Setting, nearest_name
from seglog_broker.config.listener_keys import ListenerKey, parse_listener_key
from seglog_broker.config.listeners import listener_names
from seglog_broker.config.sources import check_broker_config
from seglog_broker.config.topic_config import TOPIC_KEYS, TOPIC_NAMES
from seglog_broker.config.topic_overrides import check_together, consequences
from seglog_broker.config.values import Value
from seglog_protocol.errors import InvalidConfigError, PolicyViolationError
from seglog_protocol.quotas import ClientQuotas, Entity

ALL_BROKERS: Final = ""
"""The name of the settings of all brokers, where others have the number of their broker."""

VALUE_CHARACTERS_MAX: Final = 8_192
"""The most characters of a value: a list of addresses could have any length."""

ENTITIES_MAX: Final = 5_000
"""The most entities with quotas: a new quota writes the file of all."""

Settings = Mapping[str, str]
"""Values by key, as Kafka writes them."""

_NONE: Final[Settings] = {}


@dataclass(frozen=True, slots=True)
class DynamicConfig:
    """All settings made at run time.

    ``brokers`` are those of each broker by its number, under ``ALL_BROKERS`` those of all; ``groups`` those of groups,
    ``clients`` quotas of clients.
    """

    brokers: Mapping[str, Settings] = field(default_factory=dict)
    groups: Mapping[str, Settings] = field(default_factory=dict)
    clients: ClientQuotas = field(default_factory=dict)

    def of_broker(self, name: str) -> Settings:
        """The settings of one broker, or of ``ALL_BROKERS``."""
        return self.brokers.get(name, _NONE)

    def with_broker(self, name: str, settings: Settings) -> "DynamicConfig":
        """With these settings of one broker, or of ``ALL_BROKERS``, in place of others."""
        return dataclasses.replace(self, brokers=_replaced(self.brokers, name, settings))

    def of_group(self, name: str) -> Settings:
        """The settings of a group."""
        return self.groups.get(name, _NONE)

    def with_group(self, name: str, settings: Settings) -> "DynamicConfig":
        """With these settings of a group in place of others."""
        return dataclasses.replace(self, groups=_replaced(self.groups, name, settings))

    def with_clients(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> "DynamicConfig":
        """With other quotas of some clients; None takes one away, and an entity without any is forgotten.

        Raises PolicyViolationError where more than ``ENTITIES_MAX`` would have quotas.
        """
        clients = dict(self.clients)
        for entity, values in changes.items():
            quotas = {**clients.get(entity, {}), **values}
            clients[entity] = {key: value for key, value in quotas.items() if value is not None}
            if not clients[entity]:
                del clients[entity]
        if len(clients) > max(ENTITIES_MAX, len(self.clients)):
            raise PolicyViolationError(
                f"{len(clients):,} users, client ids and addresses would have quotas, and at most {ENTITIES_MAX:,} are "
                "possible: take one's away"
            )
        return dataclasses.replace(self, clients=clients)


FOR_ALL_BROKERS: Final = "min.insync.replicas"
"""As in Kafka, where eligible leader replicas (ELR) need it, this key is always set for all brokers, and for none."""


NO_SETTINGS: Final = DynamicConfig()

FILE_ONLY: Final = ("ssl.", "super.users")
"""How keys with an effect begin that no client can set: they name files and hold secrets, or say who administers."""

READ_ONLY: Final = frozenset({"advertised.listeners"})
"""Keys that no client can set, as in Kafka. What earlier versions have kept of them counts until it is deleted."""

DYNAMIC_KEYS: Final[Mapping[str, Key]] = {
    **{
        key.name: key
        for key in broker_config.BROKER_KEYS.values()
        if key.change is Change.RELOAD
        and key.name not in broker_config.TOPIC_DEFAULT_NAMES
        and (key.effect is Effect.NEVER or not key.name.startswith(FILE_ONLY))
    },
    **{key.synonyms[0].name: key for key in TOPIC_KEYS.values() if key.synonyms},
}
"""The broker keys of settings made at run time: those that are read wherever they are used, or nowhere.

A default of topics has one name here, the strongest, as in Kafka: ``log.retention.ms`` and not ``log.retention.hours``.
"""

SETTABLE: Final = DYNAMIC_KEYS.keys() - READ_ONLY
"""Of these, the names that a client can set."""


def parse_dynamic(name: str, text: str, kind: OriginKind) -> Value:
    """The value of a setting, in its key's own unit; checked as one in a file is. Raises InvalidConfigError."""
    key = DYNAMIC_KEYS[name]
    synonym = broker_config.TOPIC_DEFAULT_NAMES[name][1] if key.is_topic_key else None
    return key.parse(Setting(name, text, Origin(kind, name)), synonym)


def checked_settings(settings: Settings, kind: OriginKind) -> Settings:
    """Settings of a broker that are to be kept, as Kafka writes their values. Raises InvalidConfigError."""
    for name, text in settings.items():
        if len(text) > VALUE_CHARACTERS_MAX:
            raise InvalidConfigError(f"the value of {name} has more than {VALUE_CHARACTERS_MAX} characters", key=name)
    return {name: DYNAMIC_KEYS[name].text(parse_dynamic(name, text, kind)) for name, text in settings.items()}


def value_in(config: broker_config.BrokerConfig, key: Key) -> Value:
    """The value that a configuration has of a key: the broker's own, or its default for topics."""
    value: Value = getattr(config.topic_defaults if key.is_topic_key else config, key.attribute)
    return value


def with_dynamic(static: broker_config.BrokerConfig, dynamic: DynamicConfig) -> broker_config.BrokerConfig:
    """The configuration in force: the settings of this broker and of all brokers over ``static``.

    Raises InvalidConfigError for values that contradict each other.
    """
    layers = (
        (OriginKind.DYNAMIC_DEFAULT, dynamic.of_broker(ALL_BROKERS)),
        (OriginKind.DYNAMIC_BROKER, dynamic.of_broker(str(static.node_id))),
    )
    values: dict[str, Value] = {}
    topic_values: dict[str, Value] = {}
    origins, topic_origins = dict(static.origins), dict(static.topic_defaults.origins)
    for kind, settings in layers:
        for name, text in settings.items():
            key = DYNAMIC_KEYS[name]
            (topic_values if key.is_topic_key else values)[key.attribute] = parse_dynamic(name, text, kind)
            (topic_origins if key.is_topic_key else origins)[key.name] = Origin(kind, name)
    if not values and not topic_values:
        return static
    defaults = dataclasses.replace(static.topic_defaults, **topic_values, origins=topic_origins)  # type: ignore[arg-type] # each value is of its key's kind
    config = dataclasses.replace(static, **values, topic_defaults=defaults, origins=origins)  # type: ignore[arg-type] # as above
    check_together(defaults)
    check_broker_config(config)
    return config


def dynamic_warnings(settings: Settings, config: broker_config.BrokerConfig, kind: OriginKind) -> list[str]:
    """The warnings about some settings of a broker, with which ``config`` is in force."""
    found = {name: Setting(name, text, Origin(kind, name)) for name, text in settings.items()}
    warnings = [
        DYNAMIC_KEYS[name].warning(setting, parse_dynamic(name, settings[name], kind))
        for name, setting in found.items()
    ]
    of_topics = {DYNAMIC_KEYS[name].name: setting for name, setting in found.items() if DYNAMIC_KEYS[name].is_topic_key}
    return [*filter(None, warnings), *consequences(of_topics, config.topic_defaults)]


def why_not_dynamic(names: Sequence[str]) -> str:
    """The sentence that refuses to set broker keys at run time; it begins as Kafka's does."""
    reasons = "; ".join(f"{name[:60]} {_why_not_dynamic(name)}" for name in names[:5])
    return f"Cannot update these configs dynamically: [{', '.join(names)[:500]}]: {reasons}"


def _why_not_dynamic(name: str) -> str:
    if name in broker_config.TOPIC_DEFAULT_NAMES:
        return f"is set under its other name, {broker_config.TOPIC_DEFAULT_NAMES[name][0].synonyms[0].name}"
    own = parse_listener_key(name)
    key = broker_config.BROKER_NAMES.get(name if own is None else own.key)
    if key is not None and key.effect is Effect.NOW:
        if key.change is Change.RELOAD:
            return "is set in the configuration file, and in force after SIGHUP (systemctl reload)"
        where = "set it in the configuration file, the environment or a flag"
        return f"needs a restart: {where}, and start the broker again"
    if name in broker_config.CONFIG_NAMES or name in kafka_keys("broker"):
        return "has no effect here, as docs/CONFIG.md says"
    if name in TOPIC_NAMES:
        return "is a key of topics"
    nearest = nearest_name(name, frozenset(DYNAMIC_KEYS))
    return f"is not a configuration key; did you mean {nearest}?" if nearest else "is not a configuration key"


def _replaced(known: Mapping[str, Settings], name: str, settings: Settings) -> dict[str, Settings]:
    changed = {**known, name: dict(sorted(settings.items()))}
    return {name: settings for name, settings in sorted(changed.items()) if settings}


class Difference(NamedTuple):
    """One key with two values, as Kafka writes them."""

    key: str
    old: str
    new: str
    origin: Origin
    """Of the new one."""
    is_dynamic: bool
    """Whether a running broker applies it; otherwise a restart is needed."""


def differences(old: broker_config.BrokerConfig, new: broker_config.BrokerConfig) -> list[Difference]:
    """Every key whose value changed, keys for topic defaults and of single listeners included."""
    changed = [
        Difference(
            after.key,
            before.value,
            after.value,
            after.origin,
            after.key not in broker_config.BROKER_NAMES or broker_config.BROKER_NAMES[after.key].is_dynamic,
        )
        for before, after in zip(old.describe(), new.describe(), strict=True)
        if before.value != after.value or _value(old, before.key) != _value(new, after.key)  # secrets are shown alike
    ]
    return changed + _of_listeners(old, new)


def _of_listeners(old: broker_config.BrokerConfig, new: broker_config.BrokerConfig) -> list[Difference]:
    """What changed for a listener that has, or had, a setting of its own for it."""
    found = {(own.listener, own.key.name) for own in (*old.listener_settings, *new.listener_settings)}
    origins = {(own.listener, own.key.name): own.origin for own in new.listener_settings}
    changed = []
    for listener, name in sorted(found):
        key = broker_config.BROKER_KEYS[name]
        before, after = (getattr(config.of_listener(listener), key.attribute) for config in (old, new))
        if before != after:
            origin = origins.get((listener, name), new.origin(name))
            written = ListenerKey(listener, name).name
            changed.append(Difference(written, key.text(before), key.text(after), origin, key.is_dynamic))
    return changed


def _value(config: broker_config.BrokerConfig, name: str) -> object:
    """The value of a broker key; None of one for a topic default."""
    return getattr(config, broker_config.BROKER_KEYS[name].attribute) if name in broker_config.BROKER_KEYS else None


def taken_over(old: broker_config.BrokerConfig, new: broker_config.BrokerConfig) -> broker_config.BrokerConfig:
    """The configuration of a running broker with ``old`` after a reload of ``new``: static keys keep their values.

    Raises InvalidConfigError when the mixture contradicts itself, though neither of the two does.
    """
    kept = [key for key in broker_config.BROKER_KEYS.values() if not key.is_dynamic]
    values = {key.attribute: getattr(old, key.attribute) for key in kept}
    other = {key.name for key in kept if values[key.attribute] != getattr(new, key.attribute)}
    origins = {name: origin for name, origin in new.origins.items() if name not in other}
    origins |= {name: origin for name, origin in old.origins.items() if name in other}
    names = listener_names(old)
    own = [each for each in old.listener_settings if not each.key.is_dynamic]
    own += [each for each in new.listener_settings if each.key.is_dynamic and each.listener in names]
    merged = dataclasses.replace(new, **values, listener_settings=tuple(own), origins=origins)
    check_broker_config(merged)
    return merged
