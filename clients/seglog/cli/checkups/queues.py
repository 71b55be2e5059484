"""Share groups, judged: a record that goes round, no members, locks too short, a member that never acknowledges."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.cli.checkups.model import Check, ok, warning
from seglog.core.errors import count_of, duration_of
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import MetricBuckets

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog_protocol.messages import ExplainedDelivery

ASKED_MAX: Final = 10
"""Partitions about which the broker is asked more: those in which records were delivered most often."""

EXPIRED_SHARE_WARNED: Final = 0.05
"""Of the records that workers were done with, or not in time."""

_SHARE: Final = "seglog_share_"
_NUMBERS: Final = (
    *("records_waiting", "records_in_flight", "deliveries_max"),
    *("accepted_total", "released_total", "rejected_total", "expired_total", "exceeded_total"),
)
_MEMBERS: Final = "seglog_group_members"


class Queue(NamedTuple):
    """A partition as a share group has it; ``numbers`` are metrics by the end of their names."""

    group: str
    place: str
    numbers: Mapping[str, float]
    members: float | None
    """None: not known."""
    told: "ExplainedDelivery | None" = None


def ask_queues(client: "Client") -> list[Queue]:
    """Ask a broker for all that is judged; one that knows no share groups has none."""
    families = client.samples([_MEMBERS, *(f"{_SHARE}{name}" for name in _NUMBERS)])
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            assert not isinstance(sample.value, MetricBuckets)
            found.setdefault(tuple(sample.labels), {})[family.name.removeprefix(_SHARE)] = sample.value
    queues: list[Queue] = []
    for labels, numbers in sorted(found.items(), key=lambda one: -one[1].get("deliveries_max", 0)):
        if len(labels) == 3:
            group, topic, partition = labels
            queue = Queue(group, f"{topic}-{partition}", numbers, found.get((group,), {}).get(_MEMBERS))
            with suppress(SeglogError):  # it is loading, or gone
                if len(queues) < ASKED_MAX:
                    queue = queue._replace(told=client.explain.delivery(topic, int(partition), group).delivery)
            queues.append(queue)
    return queues


def queue_checks(queues: Sequence[Queue]) -> Iterator[Check]:
    """A line for all share groups, and one for each thing that is wrong; nothing without share groups."""
    if queues:
        waiting, in_flight = (round(sum(queue.numbers.get(name, 0) for queue in queues)) for name in _NUMBERS[:2])
        groups = count_of(len({queue.group for queue in queues}), "share group")
        yield ok("queues", f"{groups}: {count_of(waiting, 'record')} waiting, {in_flight:,} in flight")
    for queue in queues:
        yield from (warning("queues", *told) for told in _wrong(queue))


def _wrong(queue: Queue) -> Iterator[tuple[str, str]]:
    """Sentences, each with what to do."""
    group, place, _, members, told = queue
    waiting, _, _, *ended, expired, exceeded = (round(queue.numbers.get(name, 0)) for name in _NUMBERS)
    if waiting and members == 0:
        found = f"{group} has no members, and {count_of(waiting, 'record')} of {place} wait for it"
        yield found, f"start its workers, or delete it: seglog group delete {group}"
    if expired > EXPIRED_SHARE_WARNED * sum(ended, expired):
        found = f"the locks of {count_of(expired, 'record')} of {place} ran out before {group} acknowledged them"
        yield found, "its workers die, hang or take longer: renew, or raise share.record.lock.duration.ms of the group"
    if told is None:
        return
    if exceeded and not told.dead_letter_topic:
        found = (
            f"{group} gave up {count_of(exceeded, 'record')} of {place} after {told.delivery_count_max:,} deliveries"
        )
        yield found, "to keep such records set errors.deadletterqueue.topic.name of the group"
    if told.most_deliveries is not None and told.most_deliveries >= max(2, told.delivery_count_max - 1):
        end = f"goes to {told.dead_letter_topic}" if told.dead_letter_topic else "is dropped"
        delivery = f"delivery {told.most_deliveries:,} of {told.delivery_count_max:,}"
        found = f"{place}@{told.most_delivered} goes round in {group}: {delivery}, and after the last it {end}"
        yield found, "mend its worker; let that reject what it can never do, and give the group dead letters"
    if told.is_full and told.waiting and told.holders:
        most = told.holders[0]
        since = duration_of(max(0, told.now_ms - most.until_ms + told.lock_ms))
        having = f"{most.member_id} has {count_of(most.records, 'record')}, the first for {since}"
        found = f"{group} has all {told.record_locks_max:,} records of {place} in flight that it may: {having}"
        yield found, "see whether that worker acknowledges anything; when it ends, its records are available to others"
