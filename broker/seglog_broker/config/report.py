"""Output of ``seglogd --check-config``: the configuration as it would be in force, with its mistakes and warnings."""

from collections.abc import Sequence
from typing import Final

from seglog_broker.config.broker_config import BROKER_KEYS, TOPIC_DEFAULT_NAMES
from seglog_broker.config.changes import is_dynamic
from seglog_broker.config.keys import Change, Described, Effect, Key
from seglog_broker.config.sources import Examined
from seglog_broker.texts import counted
from seglog_protocol.quantities import with_reading
from seglog_protocol.tables import columns, table_lines

_COLUMNS: Final = columns("KEY", "VALUE", "ORIGIN", "A NEW VALUE IS IN FORCE")

_UNKNOWN: Final = "?"
"""Stands for the value of a key whose setting cannot be used."""

_NO_EFFECT: Final = {Effect.NOT_YET: "has no effect yet", Effect.NEVER: "has no effect here"}


def configuration_lines(examined: Examined) -> list[str]:
    """A table of every key with its value, its origin, and when a new value is in force."""
    wrong = {error.facts.get("key") for error in examined.mistakes}
    return list(table_lines(_COLUMNS, (_row(described, wrong) for described in examined.config.describe())))


def verdict_lines(examined: Examined, more_warnings: Sequence[str]) -> list[str]:
    """Warnings, mistakes, and a line that counts both; ``more_warnings`` are those about this machine."""
    warnings = [*examined.warnings, *more_warnings]
    mistakes = [error.message for error in examined.mistakes]
    found = [counted(len(items), what) for items, what in ((mistakes, "mistake"), (warnings, "warning")) if items]
    return [
        *(f"warning: {_sentence(warning)}" for warning in warnings),
        *(f"mistake: {_sentence(mistake)}" for mistake in mistakes),
        f"{' and '.join(found)}: the broker would not start." if mistakes else _sound(found),
    ]


def _sound(found: Sequence[str]) -> str:
    return f"The configuration can be used ({found[0]})." if found else "The configuration can be used."


def _row(described: Described, wrong: set[object]) -> tuple[str, str, str, str]:
    key = _key(described.key)
    names = {synonym.name for synonym in (*key.synonyms, *key.names)} | {described.key}
    if names & wrong:
        return described.key, _UNKNOWN, "see below", ""
    if key.effect is not Effect.NOW:
        change = _NO_EFFECT[key.effect]
    else:
        change = str(Change.RELOAD if is_dynamic(described.key) else Change.RESTART)
    return described.key, with_reading(described.key, described.value) or '""', str(described.origin), change


def _key(name: str) -> Key:
    return BROKER_KEYS[name] if name in BROKER_KEYS else TOPIC_DEFAULT_NAMES[name][0]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."
