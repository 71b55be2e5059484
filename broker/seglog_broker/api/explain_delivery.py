"""Explanations of what a share group has of a partition: who has which records, and what became of one of them."""

from collections.abc import Sequence
from typing import Any, Final

from seglog_broker.api.monitoring.share_sources import Sharing
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.share.partition import RunFacts
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVING, AVAILABLE
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.coordinators.state_machine import Now
from seglog_broker.partitions.partition import Partition
from seglog_broker.texts import counted, time_text
from seglog_protocol import messages
from seglog_protocol.errors import UnknownGroupError

HOLDERS_MAX: Final = 20
"""Members in an answer."""

STATES: Final = "available", "acquired", "acknowledged", "archiving", "archived"
"""Kafka's delivery states, by their numbers."""


def explain_delivery(
    shares: ShareService, partition: Partition, topic_id: str, request: messages.ExplainRequest
) -> messages.ExplainReply:
    """Tell what a share group has of a partition, and of the record at ``offset`` if one is given.

    Raises UnknownGroupError where the group does not read it, and as ``ShareService.check``.
    """
    group, offset = request.group or "", request.offset
    key = PartitionKey(group, id_bytes(topic_id), request.partition)
    machine = shares.find(key)
    if machine is None:
        raise UnknownGroupError(f"no share group {group} reads {request.topic}-{request.partition}", group=group)
    now, settings, counts, runs = shares.runtime.now(), shares.settings.of(group), machine.counts(), [*machine.runs()]
    facts: dict[str, Any] = {}
    run = None if offset is None else next((run for run in runs if run.first <= offset <= run.last), None)
    if run is None:
        why = "" if offset is None else _why_unknown(machine.start_offset, offset, partition.log.log_end_offset)
    else:
        held_up = [each.reason for each in shares.dead_letters.held_up() if each.key == key]
        why = _why(run, settings.delivery_count_max, _wall_ms(run, now), held_up)
        facts = {"state": STATES[run.state], "delivery_count": run.delivery_count}
        if run.state == ACQUIRED:
            facts |= {"member_id": run.member, "until_ms": _wall_ms(run, now)}
    if machine.start_offset >= 0:
        facts |= {"start_offset": machine.start_offset, "is_full": machine.next_offset() is None}
    pending = [run for run in runs if run.state in {AVAILABLE, ACQUIRED}]
    most = max(pending, key=lambda run: run.delivery_count, default=None)
    if most is not None:
        facts |= {"most_delivered": most.first, "most_deliveries": most.delivery_count}
    delivery = messages.ExplainedDelivery(
        *(now.wall_ms, counts.acquired, counts.archiving, Sharing(machine, partition).waiting or 0),
        *(settings.lock_ms, settings.delivery_count_max, settings.record_locks_max, settings.dead_letter_topic),
        holders=_holders(pending, now),
        **facts,
    )
    return messages.ExplainReply(request.topic, request.partition, len(partition.log.segments), why, delivery=delivery)


def _wall_ms(run: RunFacts, now: Now) -> int:
    """When the lock of an acquired run ends."""
    return now.wall_ms + run.deadline_ms - now.monotonic_ms


def _why(run: RunFacts, delivery_count_max: int, until_ms: int, held_up: Sequence[str]) -> str:
    """The state of a record in flight, as a sentence."""
    count, times = run.delivery_count, counted(run.delivery_count, "time")
    if run.state == AVAILABLE:
        given = f": it was delivered {times}, and given back, or its lock ran out" if count else ""
        return f"it waits to be given to a member{given}"
    if run.state == ACQUIRED:
        return f"member {run.member} has it until {time_text(until_ms)}: delivery {count} of {delivery_count_max}"
    if run.state == ACKNOWLEDGED:
        return f"it was accepted, at delivery {count}"
    gone = "rejected" if count < delivery_count_max else f"given up after it was delivered {times}"
    if run.state == ARCHIVING:
        return f"it was {gone}, and its dead letter is not written yet" + "".join(f": {reason}" for reason in held_up)
    return f"it was {gone}, or the log has it no more"


def _why_unknown(start: int, offset: int, end: int) -> str:
    """The state of an offset that is not in flight; ``start`` is the group's start, ``end`` that of the log."""
    if start < 0:
        return "no member has fetched yet, so that it is not chosen where the group begins"
    if offset < start:
        return "it is done with: it was accepted or archived, or was there before the group"
    return "it waits: no member was given it yet" if offset < end else "there is no such record yet"


def _holders(runs: Sequence[RunFacts], now: Now) -> list[messages.RecordHolder]:
    """The members that have acquired the most records."""
    found: dict[str, list[RunFacts]] = {}
    for run in runs:
        if run.state == ACQUIRED:
            found.setdefault(run.member, []).append(run)
    made = messages.RecordHolder
    holders = [
        made(member, sum(run.last - run.first + 1 for run in its), its[0].first, min(_wall_ms(run, now) for run in its))
        for member, its in found.items()
    ]
    return sorted(holders, key=lambda holder: -holder.records)[:HOLDERS_MAX]
