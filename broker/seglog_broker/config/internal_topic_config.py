"""Settings of internal topics: those under which the broker's own records are taken, and stay until replaced."""

from collections.abc import Mapping
from typing import Final

from seglog_protocol.errors import InvalidConfigError
from seglog_protocol.internal_topics import is_internal

_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
_HOUR_MS: Final = 3_600_000

_LEAST: Final = {
    "max.message.bytes": 1_048_588,  # Kafka's default: what the members of a large group say is one record
    "segment.bytes": 1_048_576,  # a batch that is larger than a segment is refused
    "message.timestamp.before.max.ms": _HOUR_MS,  # records wait for the disk, and clocks are set
    "message.timestamp.after.max.ms": _HOUR_MS,
}
"""The least values of settings that refuse records.

Other keys stay free: retention does nothing beside ``compact``, batches are compressed as ``compression.type`` says,
the time of a record is not looked at when it is read, and ``min.insync.replicas`` has no effect.
"""


def settings_in_force(topic: str, settings: Mapping[str, str]) -> dict[str, str]:
    """A topic's own settings as they are used: those of an internal one are corrected where records would be lost.

    They are as they are stored: canonical names, valid values.
    """
    if not is_internal(topic):
        return dict(settings)
    raised = {key: str(max(int(value), _LEAST[key])) if key in _LEAST else value for key, value in settings.items()}
    return {**raised, _POLICY: _COMPACT}


def check_settings(topic: str, settings: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for own settings under which an internal topic would lose or refuse records."""
    for key, needed in settings_in_force(topic, settings).items():
        if settings.get(key) != needed:
            limit = f"stays {needed}" if key == _POLICY else f"is at least {needed}"
            raise InvalidConfigError(
                f"{key} of {topic} {limit}: the topic is the broker's own, and with another value it would lose or "
                "refuse what groups commit",
                key=key,
            )
