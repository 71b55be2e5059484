"""Topics that the broker itself writes: their names and settings are Kafka's."""

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_GROUPS_TOPIC: Final = "__share_group_state"

COMPACTED_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Internal topics in which the last record of a key has all there is to know of it.

Those of share groups are deltas, of which Kafka deletes the ones before a whole state: compacted, they lose the others.
"""

INTERNAL_TOPICS: Final = COMPACTED_TOPICS | {SHARE_GROUPS_TOPIC}

RESERVED_TOPIC: Final = "__cluster_metadata"
"""No topic may have this name: in a log directory ``__cluster_metadata-0`` is Kafka's metadata log."""


def is_internal(topic: str) -> bool:
    """Whether the broker alone creates and writes this topic. Clients may read it, and alter some settings."""
    return topic in INTERNAL_TOPICS
