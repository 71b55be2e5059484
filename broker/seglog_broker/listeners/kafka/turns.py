"""Turns for other tasks between the parts of a request about many topics."""

from collections.abc import Iterable
from typing import Final, TypeVar

from seglog_broker.listeners.kafka.context import RequestContext
from seglog_broker.partitions.scheduler import Spread
from seglog_broker.runtime import budget

PARTITION_COST: Final = 4
"""Microseconds to describe a partition, or to name a topic or a group."""

TOPIC_COST: Final = 40
"""To describe a topic or a group, without its partitions or members."""

CHANGE_COST: Final = 440
"""To create, enlarge or refuse a topic."""

PARTITIONS_A_TURN: Final = budget.items_of(PARTITION_COST)

ItemT = TypeVar("ItemT")


def in_turns(context: RequestContext, items: Iterable[ItemT]) -> Spread[ItemT]:
    """The items, each of which costs no more than a partition; other tasks run in between."""
    return Spread(context.turn, iter(items), PARTITIONS_A_TURN, PARTITIONS_A_TURN - 1)
