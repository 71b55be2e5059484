"""Explanations of what a share group has of a partition: who has which records, what became of one, what is wrong."""

from collections.abc import Iterator
from typing import Any, Final

from seglog_broker.api.monitoring.share_sources import Sharing
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVING, AVAILABLE, Run
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.partitions.partition import Partition
from seglog_broker.texts import counted, time_text
from seglog_protocol import messages
from seglog_protocol.errors import UnknownGroupError

HOLDERS_MAX: Final = 20
"""Members in an answer."""

EXPIRED_SHARE_WARNED: Final = 0.05
"""Of records that were acknowledged, or not in time."""

STATES: Final = "available", "acquired", "acknowledged", "archiving", "archived"
"""Kafka's delivery states, by their numbers."""


class DeliveryExplanation:
    """What a share group has of a partition at a moment. Use it at once."""

    def __init__(self, shares: ShareService, partition: Partition, topic_id: str, group: str) -> None:
        """Raises UnknownGroupError where the group does not read the partition, and as ``ShareService.check``."""
        self._group = group
        self._place = f"{partition.topic}-{partition.number}"
        self._key = PartitionKey(group, id_bytes(topic_id), partition.number)
        machine = shares.find(self._key)
        if machine is None:
            raise UnknownGroupError(f"no share group {group} reads {self._place}", group=group)
        self._machine = machine
        self._partition = partition
        self._waiting = Sharing(machine, partition).waiting
        self._settings = shares.settings.of(group)
        self._held_up = "".join(f": {each.reason}" for each in shares.dead_letters.held_up() if each.key == self._key)
        self._now = shares.runtime.now()

    def reply(self, offset: int | None, members: int) -> messages.ExplainReply:
        """The answer, with the record at ``offset`` if one is given; the group has so many members."""
        machine, partition, runs = self._machine, self._partition, self._machine.runs()
        facts: dict[str, Any] = {}
        run = None if offset is None else next((run for run in runs if run.first <= offset <= run.last), None)
        if run is not None:
            facts = {"state": STATES[run.state], "delivery_count": run.count}
            if run.state == ACQUIRED:
                facts |= {"member_id": run.member, "until_ms": self._until_ms(run)}
        holders = self._holders()
        return messages.ExplainReply(
            partition.topic,
            partition.number,
            len(partition.log.segments),
            "" if offset is None else self._why_unknown(offset) if run is None else self._why(run),
            delivery=messages.ExplainedDelivery(
                *(self._now.wall_ms, runs.records[ACQUIRED], runs.records[ARCHIVING], self._waiting or 0),
                start_offset=None if self._waiting is None else machine.start_offset,
                holders=holders[:HOLDERS_MAX],
                warnings=[messages.Advice(*each) for each in self._wrong(holders, members)],
                **facts,
            ),
        )

    def _until_ms(self, run: Run) -> int:
        """When the lock of an acquired run ends."""
        return self._now.wall_ms + run.deadline_ms - self._now.monotonic_ms

    def _why(self, run: Run) -> str:
        """The state of a record in flight, as a sentence."""
        count, times, most = run.count, counted(run.count, "time"), self._settings.delivery_count_max
        if run.state == AVAILABLE:
            given = f": it was delivered {times}, and given back, or its lock ran out" if count else ""
            return f"it waits to be given to a member{given}"
        if run.state == ACQUIRED:
            return f"member {run.member} has it until {time_text(self._until_ms(run))}: delivery {count} of {most}"
        if run.state == ACKNOWLEDGED:
            return f"it was accepted, at delivery {count}"
        gone = "rejected" if count < most else f"given up after it was delivered {times}"
        if run.state == ARCHIVING:
            return f"it was {gone}, and its dead letter is not written yet{self._held_up}"
        return f"it was {gone}, or the log has it no more"

    def _why_unknown(self, offset: int) -> str:
        """The state of an offset that is not in flight."""
        if self._waiting is None:
            return "no member has fetched yet, so that it is not chosen where the group begins"
        if offset < self._machine.start_offset:
            return "it is done with: it was accepted or archived, or was there before the group"
        is_there = offset < self._partition.log.log_end_offset
        return "it waits: no member was given it yet" if is_there else "there is no such record yet"

    def _holders(self) -> list[messages.RecordHolder]:
        """The members that have acquired records, those with the most first."""
        found: dict[str, list[Run]] = {}
        for run in self._machine.runs():
            if run.state == ACQUIRED:
                found.setdefault(run.member, []).append(run)
        holders = [
            messages.RecordHolder(
                member, sum(run.last - run.first + 1 for run in runs), runs[0].first, min(map(self._until_ms, runs))
            )
            for member, runs in found.items()
        ]
        return sorted(holders, key=lambda holder: -holder.records)

    def _wrong(self, holders: list[messages.RecordHolder], members: int) -> Iterator[tuple[str, str]]:
        """Sentences about what is wrong, each with what to do."""
        group, place, settings, tally = self._group, self._place, self._settings, self._machine.tally
        most, letters = settings.delivery_count_max, settings.dead_letter_topic
        alter = f"seglog queue alter {group} --config"
        if self._waiting and not members:
            found = f"{group} has no members for {counted(self._waiting, 'record')} of {place}"
            yield found, f"start its workers, or delete it: seglog group delete {group}"
        if tally.expired > EXPIRED_SHARE_WARNED * (tally.accepted + tally.released + tally.rejected + tally.expired):
            found = (
                f"the locks of {counted(tally.expired, 'record')} of {place} ran out before {group} acknowledged them"
            )
            yield found, f"workers die, hang or take longer: renew, or {alter} share.record.lock.duration.ms=60000"
        if tally.exceeded and not letters:
            found = f"{group} gave up {counted(tally.exceeded, 'record')} of {place} after {most} deliveries"
            yield found, f"to keep such records: {alter} errors.deadletterqueue.topic.name=TOPIC"
        for run in self._machine.runs():
            if run.state <= ACQUIRED and run.count >= max(2, most - 1):
                end = f"goes to {letters}" if letters else "is dropped"
                found = f"{place}@{run.first} goes round in {group}: delivery {run.count} of {most}, then it {end}"
                yield found, "mend its worker, and let that reject what it can never do"
                break
        if holders and self._waiting and self._machine.next_offset() is None:
            first = holders[0]
            seconds = max(0, self._now.wall_ms - first.until_ms + settings.lock_ms) / 1000
            having = f"{first.member_id} has {counted(first.records, 'record')}, the first for {seconds:.0f} s"
            found = f"{group} has all {settings.record_locks_max} records of {place} in flight that it may: {having}"
            yield found, "see whether that worker acknowledges any; when it ends, its records are available to others"
