"""Configuration keys: name, kind, range, effect and meaning, and the origin of a value.

The keys themselves stand with the attributes that hold their values, in ``topic_config`` and ``broker_config``, so that
name, type, default and meaning of a setting are written once, in one place. The name of a key is that of the attribute
with ``.`` for ``_``:

    segment_ms: int = key(604_800_000, Long(1), "...", "...")
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from seglog_broker.config.values import HIDDEN, Kind, Raw, Secret, Value, Whole, parse_with_unit, shown
from seglog_protocol.errors import InvalidConfigError
from seglog_protocol.quantities import unit_of

DefaultT = TypeVar("DefaultT", bound=Value)


class Effect(StrEnum):
    """Whether setting a key has an effect."""

    NOW = "now"
    NEVER = "never on one node"
    """Accepted and checked so that Kafka's configurations can be used as they are."""


class Change(StrEnum):
    """When a new value takes effect in a running broker."""

    RELOAD = "at a reload"
    """When SIGHUP makes the broker read the file again, or a client alters the key at run time."""
    RESTART = "at a restart"


class OriginKind(StrEnum):
    """Where a value may come from, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"
    DYNAMIC_DEFAULT = "dynamic default"
    """Set at run time for all brokers."""
    DYNAMIC_BROKER = "dynamic broker"
    """Set at run time for this broker."""
    DYNAMIC_GROUP = "dynamic group"
    """Set at run time for a group."""
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from.

    ``where`` names file and key, the variable, the flag, or the topic key; it is empty for a default.
    """

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip()


WRITTEN: Final = frozenset({OriginKind.FILE, OriginKind.ENVIRONMENT, OriginKind.FLAG})
"""Where the owner of the broker writes settings."""

DEFAULT_ORIGIN: Final = Origin(OriginKind.DEFAULT)


class Setting(NamedTuple):
    """One value as it was written, with its name and origin."""

    name: str
    raw: Raw
    origin: Origin


@dataclass(frozen=True, slots=True)
class Synonym:
    """Another name for a key, perhaps in another unit.

    ``factor`` converts a value into the key's own unit. ``kind`` is the kind of the written value; None for that of the
    key. ``off_below_zero`` is Kafka's rule for broker-wide retention: any negative value means -1, and 0 is refused.
    """

    name: str
    factor: int = 1
    kind: Kind | None = None
    off_below_zero: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key.

    ``synonyms`` are other names for the setting, strongest first; for a topic key they are the broker's keys for its
    default, for a broker key its other spellings (the key's own name included, to place it in the order). ``aliases``
    are other names at topic level, stronger than ``name``. ``holds`` is, for a key without effect, the value that
    describes what the broker does, so that setting it needs no warning; ``is_kept`` says that a new value needs a
    restart even so. ``note`` says why there is no effect. ``change`` says when a new value takes effect; RELOAD for a
    topic key, of which a topic's own applies at once. ``name`` and ``default`` come from the attribute that carries
    the key. A key that never has an effect has neither ``doc`` nor ``when``: its meaning is Kafka's, see
    ``kafka_keys``.
    """

    kind: Kind
    doc: str = ""
    when: str = ""
    effect: Effect = Effect.NOW
    note: str = ""
    holds: Value | None = None
    is_kept: bool = False
    synonyms: tuple[Synonym, ...] = ()
    aliases: tuple[str, ...] = ()
    change: Change = Change.RESTART
    is_topic_key: bool = False
    name: str = ""
    default: Value = ""

    @property
    def attribute(self) -> str:
        """The attribute of the configuration that holds the value."""
        return self.name.replace(".", "_")

    @property
    def is_dynamic(self) -> bool:
        """Whether a running broker applies a new value; a key without effect needs no restart, as a rule."""
        return self.change is Change.RELOAD or (self.effect is not Effect.NOW and not self.is_kept)

    @property
    def names(self) -> tuple[Synonym, ...]:
        """The names a broker key can be written under, strongest first."""
        return self.synonyms or (Synonym(self.name),)

    def parse(self, setting: Setting, synonym: Synonym | None = None) -> Value:
        """The value of a setting in this key's own unit; durations and sizes may be written as ``7d``, ``1GiB``.

        Raises InvalidConfigError naming the valid range.
        """
        kind = self.kind if synonym is None or synonym.kind is None else synonym.kind
        try:
            value = parse_with_unit(kind, setting.raw, unit_of(setting.name))
            if synonym is not None and isinstance(value, int) and not isinstance(value, bool):
                value = _converted(value, synonym)
        except ValueError as error:
            refuse(setting._replace(raw=HIDDEN) if isinstance(kind, Secret) else setting, str(error))
        return value

    def text(self, value: Value) -> str:
        """A value of this key as Kafka writes it."""
        return self.kind.text(value)

    def warning(self, setting: Setting, value: Value) -> str | None:
        """The warning for a ``setting`` whose ``value`` has no effect; None if it has one."""
        shortfall = self.shortfall(value)
        return None if shortfall is None else f"{setting.name}{_place(setting)} is accepted but has {shortfall}."

    def is_noted(self, value: Value) -> bool:
        """Whether setting this value is to be noted because the key never has an effect."""
        return self.effect is Effect.NEVER and value != self.holds

    def shortfall(self, value: Value) -> str | None:
        """Why this value has no effect; None if it has one, or describes what the broker does anyway."""
        if self.effect is Effect.NOW or value == self.holds:
            return None
        return f"no effect here: {self.note}"

    def described(self, value: Value, origin: Origin) -> "Described":
        """The description of this key with a value."""
        return Described(self.name, self.text(value), origin, origin == DEFAULT_ORIGIN, self.shortfall(value))


def key(
    default: DefaultT, kind: Kind, doc: str, when: str, *names: str | Synonym, aliases: tuple[str, ...] = ()
) -> DefaultT:
    """An attribute for the value of a key, with its default; ``names`` are its synonyms. For ``keys_of``."""
    return _attribute(default, Key(kind, doc, when, synonyms=_synonyms(names), aliases=aliases))


def reloadable(default: DefaultT, kind: Kind, doc: str, when: str) -> DefaultT:
    """As ``key``, for a broker key whose new value is in force at a reload."""
    return _attribute(default, Key(kind, doc, when, change=Change.RELOAD))


def without_effect(
    default: DefaultT, kind: Kind, note: str, *names: str, holds: Value | None = None, is_kept: bool = False
) -> DefaultT:
    """As ``key``, for one of Kafka's that is checked and never has an effect; ``note`` says why."""
    synonyms = _synonyms(names)
    return _attribute(default, Key(kind, "", "", Effect.NEVER, note, holds, is_kept=is_kept, synonyms=synonyms))


def settable(default: DefaultT, kind: Kind, note: str, *, holds: Value | None = None) -> DefaultT:
    """As ``without_effect``, for a key that Kafka's clients set at run time: they may here, too."""
    return _attribute(default, Key(kind, "", "", Effect.NEVER, note, holds, change=Change.RELOAD))


def _attribute(default: DefaultT, key: Key) -> DefaultT:
    is_shown = not isinstance(key.kind, Secret)
    attribute: DefaultT = dataclasses.field(default=default, repr=is_shown, metadata={"key": key})
    return attribute


def _synonyms(names: tuple[str | Synonym, ...]) -> tuple[Synonym, ...]:
    return tuple(Synonym(name) if isinstance(name, str) else name for name in names)


class Described(NamedTuple):
    """One line of a description: the key, its value as Kafka writes it, its origin, and whether it is the default.

    ``shortfall`` says why the value has no effect; None if it has one.
    """

    key: str
    value: str
    origin: Origin
    is_default: bool
    shortfall: str | None


def keys_of(cls: type[Any], *, topic: bool) -> Mapping[str, Key]:
    """The keys of the attributes of a dataclass, by name, in the order of the class."""
    found = {}
    for field in dataclasses.fields(cls):
        if (key := field.metadata.get("key")) is not None:
            name = field.name.replace("_", ".")
            change = Change.RELOAD if topic else key.change
            found[name] = dataclasses.replace(key, name=name, default=field.default, is_topic_key=topic, change=change)
    return found


def refuse(setting: Setting, why: str) -> NoReturn:
    """Raise InvalidConfigError for a value; ``why`` is the second half of the sentence, "must be ..."."""
    raise InvalidConfigError(
        f"{setting.name} = {shown(setting.raw)}{_place(setting)} cannot be used: it {why}.", key=setting.name
    )


NAME_COMPARED_MAX: Final = 100
"""Characters of an unknown key; a longer one is not compared with the known keys, as the time grows with the square."""


def nearest_name(name: str, known: Mapping[str, object] | frozenset[str]) -> str:
    """The known name most similar to ``name``; empty when none is similar, or ``name`` is too long to compare."""
    import difflib  # noqa: PLC0415 - a correct configuration never needs it

    if len(name) > NAME_COMPARED_MAX:
        return ""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)), "")


def _place(setting: Setting) -> str:
    """The origin of a setting for a message; empty for one that a client makes, where the key is enough."""
    return f" ({setting.origin})" if setting.origin.kind in WRITTEN else ""


def _converted(value: int, synonym: Synonym) -> int:
    if synonym.off_below_zero:
        if value == 0:
            raise ValueError("must be at least 1, or negative to keep records for ever; 0 is possible for a topic only")
        if value < 0:
            return -1
    return value * synonym.factor


def hours(name: str, minimum: int | None = None, *, off_below_zero: bool = False) -> Synonym:
    """A synonym in hours for a key in milliseconds."""
    return Synonym(name, 3_600_000, Whole(32, minimum), off_below_zero)
