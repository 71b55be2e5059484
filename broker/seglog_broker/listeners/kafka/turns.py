"""Requests about many topics: turns for other tasks between their parts, and the outcome of each."""

from collections.abc import Awaitable, Iterable, Sequence
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
ResultT = TypeVar("ResultT")


def in_turns(context: RequestContext, items: Iterable[ItemT]) -> Spread[ItemT]:
    """The items, each of which costs no more than a partition; other tasks run in between."""
    return Spread(context.turn, iter(items), PARTITIONS_A_TURN, PARTITIONS_A_TURN - 1)


async def each_outcome(results: Awaitable[Sequence[ResultT]], count: int) -> Sequence[ResultT | Exception]:
    """The results of ``count`` things, or the error of each where all fail together; whoever answers it logs it."""
    try:
        return await results
    except Exception as error:  # noqa: BLE001 - see above
        return [error] * count
