"""Transactions, groups and logs together: random clients through random lives of a broker on the forgetful disk.

Producers of three transactional ids, with both transaction versions, send to several partitions and commit offsets in
the same transaction. They are fenced by newer ones, go on as zombies, leave transactions open until their timeouts, and
have batches under way when all is over. Members of a group copy a topic, and lose partitions while they do. Meanwhile
readers read at read_committed, a topic is deleted and made again, and the broker's own topics are compacted. The disk
is full from any file operation on, and has room again later. The broker stops before any file operation, and the disk
then has anything that the end of a process or a power cut may leave.

In the end each transaction is there exactly once and as a whole, with its offset, or not at all, as its client was
told; what members have copied is what their group has committed; nothing was read that is not there; and nothing is
held back for ever.

``MISTAKES`` are errors made on purpose. The same run finds each of them, which shows that it would find real ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import pytest
import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffsets, Key, Pending
from seglog_broker.coordinators.groups.service.offsets import OffsetService
from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_broker.coordinators.state_machine import Now, Record
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.coordinators.transactions.facts import (
    Partition,
    TransactionReplay,
    TransactionState,
)
from seglog_broker.coordinators.transactions.machine import Ending, TransactionalId
from seglog_broker.coordinators.transactions.service.markers import MarkerWriter
from seglog_broker.coordinators.transactions.service.service import TransactionService
from seglog_broker.partitions.partition import Partition as ServedPartition
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.producers.producer_state import ProducerState, TransactionEnd
from seglog_protocol.errors import CoordinatorNotAvailableError, DiskFullError, SeglogError
from seglog_protocol.internal_topics import TRANSACTIONS_TOPIC
from seglog_protocol.kafka.messages import TransactionLogValue
from seglog_protocol.messages import Ack, AppendRequest
from seglog_protocol.record_batch import BatchHeader
from tests.support import ON_SOURCES, each_case, some_seeds
from tests.unit.simulation.transactions.simulation import simulate

ENDS: Final = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT

SEEDS_UNTIL_CAUGHT: Final = 200
"""A crash has to come between two syncs of one round for some: one run in forty finds them."""


@each_case("seed", some_seeds(100, quick=3))
def test_whatever_happens_a_transaction_is_there_as_a_whole_or_not_at_all(seed: int) -> None:
    world = simulate(seed)
    attempts = list(world.ledger.all_attempts())
    assert any(attempt.outcome for attempt in attempts)


# --- Mistakes ---------------------------------------------------------------------------------------------------------

Mistake = Callable[[pytest.MonkeyPatch], None]


def marker_before_state(patch: pytest.MonkeyPatch) -> None:
    """Markers are written one by one when an end is decided, and the decision a little later."""
    append_decided, write_some = CoordinatorRuntime.append_decided, StateTopic._write_some

    async def write_later(topic: StateTopic) -> None:
        await trio.sleep(0.05)
        await write_some(topic)

    def end_at_once(runtime: CoordinatorRuntime[Any], key: str, *, is_urgent: bool = True) -> None:
        effects = runtime.outbox.effects
        runtime.outbox.effects = [effect for effect in effects if not isinstance(effect, Ending)]
        for effect in effects:
            if isinstance(effect, Ending):
                runtime._carry_out(effect)
        append_decided(runtime, key, is_urgent=is_urgent)

    patch.setattr(CoordinatorRuntime, "append_decided", end_at_once)
    patch.setattr(StateTopic, "_write_some", write_later)
    patch.setattr("seglog_broker.coordinators.transactions.service.markers.MARKERS_A_ROUND", 1)


def state_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """What is decided takes effect when it is written, not when it is on the disk."""

    def request(partitions: list[object], ack: str, *, create: bool) -> AppendRequest:
        del ack
        return AppendRequest(partitions, "os", create=create)  # type: ignore[arg-type]

    patch.setattr("seglog_broker.coordinators.topic.AppendRequest", request)


def place_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """Records are taken when it is written, and not on the disk, that their partition is part of the transaction."""
    write_some = StateTopic._write_some
    begins: list[bool] = []

    def is_place(record: Any) -> bool:
        value = getattr(record, "value", None)
        return isinstance(value, TransactionLogValue) and TransactionState(value.transaction_status) not in {
            TransactionState.EMPTY,
            *ENDS,
        }

    async def write(topic: StateTopic) -> None:
        begins[:] = [all(is_place(record) for write in topic._queue for record in write.records)]
        await write_some(topic)

    def request(partitions: list[object], ack: Ack, *, create: bool) -> AppendRequest:
        return AppendRequest(partitions, "os" if begins == [True] else ack, create=create)  # type: ignore[arg-type]

    patch.setattr(StateTopic, "_write_some", write)
    patch.setattr("seglog_broker.coordinators.topic.AppendRequest", request)


def fence_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Any producer may go on, whatever its epoch."""

    def check(machine: TransactionalId, producer: ProducerIdAndEpoch) -> None:
        del machine, producer

    patch.setattr(TransactionalId, "check_producer", check)


def commit_of_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    """A commit is decided before what it covers is on the disk."""

    async def do_not(markers: MarkerWriter, partitions: Iterable[Partition]) -> None:
        del markers, partitions

    patch.setattr(MarkerWriter, "make_durable", do_not)


def last_stable_offset_too_high(patch: pytest.MonkeyPatch) -> None:
    """Readers at read_committed get all that there is."""
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.log_end_offset))


def aborted_not_entered(patch: pytest.MonkeyPatch) -> None:
    """An aborted transaction is not entered in the index, so that readers take it for committed."""
    patch.setattr(ProducerState, "aborted_by", lambda _state, _producer_id, _offset: None)


def replayed_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """After a start the first state of a transactional id is taken for the last one."""
    apply = TransactionReplay.apply

    def keep_first(replay: TransactionReplay, record: Record) -> None:
        before = dict(replay.records)
        apply(replay, record)
        replay.records.update(before)

    patch.setattr(TransactionReplay, "apply", keep_first)


def offsets_applied_before_the_marker(patch: pytest.MonkeyPatch) -> None:
    """An offset that a transaction commits counts at once."""

    def hold(offsets: CommittedOffsets, producer_id: int, group: str, key: Key, pending: Pending) -> None:
        del producer_id
        offsets.put(group, key, pending.committed)

    patch.setattr(CommittedOffsets, "hold", hold)


def not_followed_after_a_start(patch: pytest.MonkeyPatch) -> None:
    """What was decided before a crash is not completed after it, and partitions expect nothing."""

    def restored(machine: TransactionalId, now: Now) -> None:
        if machine.facts.state is TransactionState.ONGOING:
            machine._deadline_ms = now.monotonic_ms + machine.facts.timeout_ms

    patch.setattr(TransactionalId, "restored", restored)


def no_timeout_after_a_start(patch: pytest.MonkeyPatch) -> None:
    """A transaction that was open before a crash is not aborted at its timeout."""
    patch.setattr(TransactionalId, "restored", lambda machine, _now: machine._follow())


def complete_before_all_markers(patch: pytest.MonkeyPatch) -> None:
    """The end of a transaction is complete when its first partition has the marker."""
    add = MarkerWriter.add

    def add_one(markers: MarkerWriter, ending: Ending, epoch: int) -> None:
        topics = list(ending.partitions.items())[:1]
        add(markers, ending._replace(partitions={topic: frozenset([min(numbers)]) for topic, numbers in topics}), epoch)

    patch.setattr(MarkerWriter, "add", add_one)


def markers_not_synced(patch: pytest.MonkeyPatch) -> None:
    """The end of a transaction is complete when its markers are written, and nobody has them synced."""
    append_marker, want_durable = ServedPartition.append_marker, ServedPartition.want_durable
    marked: set[ServedPartition] = set()

    def append(partition: ServedPartition, end: TransactionEnd) -> int:
        marked.add(partition)
        return append_marker(partition, end)

    def want(partition: ServedPartition) -> None:
        if partition in marked:
            marked.remove(partition)
        else:
            want_durable(partition)

    async def do_not_wait(ends: Mapping[object, int], *_: object) -> None:
        del ends
        await trio.lowlevel.checkpoint()

    patch.setattr(ServedPartition, "append_marker", append)
    patch.setattr(ServedPartition, "want_durable", want)
    patch.setattr("seglog_broker.coordinators.transactions.service.markers.when_durable", do_not_wait)


def expected_after_the_marker(patch: pytest.MonkeyPatch) -> None:
    """A partition takes batches of a transaction that has ended."""
    apply = ProducerState.apply_marker

    def apply_marker(state: ProducerState, header: BatchHeader, *rest: object) -> None:
        expected = state._expected.get(header.producer_id)
        apply(state, header, *rest)  # type: ignore[arg-type]
        if expected is not None:
            state._expected[header.producer_id] = expected

    patch.setattr(ProducerState, "apply_marker", apply_marker)
    patch.setattr(ProducerState, "_check_batch", lambda *_: None)


def abort_of_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    """After a start a decided commit is taken back, as if it had been open."""
    restored = TransactionalId.restored

    def take_back(machine: TransactionalId, now: Now) -> None:
        if machine.facts.state is TransactionState.PREPARE_COMMIT:
            machine.facts = machine.facts._replace(state=TransactionState.PREPARE_ABORT)
        restored(machine, now)

    patch.setattr(TransactionalId, "restored", take_back)


def groups_not_told(patch: pytest.MonkeyPatch) -> None:
    """Groups learn of no marker."""

    async def tell(markers: MarkerWriter, work: object, key: Sequence[object]) -> bool:
        del markers, work, key
        return True

    patch.setattr(MarkerWriter, "_tell", tell)


def commits_while_a_snapshot_is_made(patch: pytest.MonkeyPatch) -> None:
    """A backup has partitions from before a commit, and others from after it."""
    patch.setattr(TransactionService, "commits_held", lambda _service: nullcontext())


def generation_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A member of an older generation may commit offsets for partitions that are another's now."""
    patch.setattr(OffsetService, "_check_committer", lambda *_: None)


def full_disk_taken_for_written(patch: pytest.MonkeyPatch) -> None:
    """What is decided takes effect, though the disk had no room for it."""
    call_back_each = StateTopic._call_back

    def call_back(topic: StateTopic, error: SeglogError | None = None) -> None:
        for write in topic._writes:
            if write.batch is not None and isinstance(write.batch.error, CoordinatorNotAvailableError):
                write.batch.error = None
        call_back_each(topic, error)

    patch.setattr(StateTopic, "_call_back", call_back)


def marker_given_up(patch: pytest.MonkeyPatch) -> None:
    """A marker for which the disk has no room is not written later."""
    append_marker = ServedPartition.append_marker

    def append(partition: ServedPartition, end: TransactionEnd) -> int:
        try:
            return append_marker(partition, end)
        except DiskFullError:
            return partition.log.log_end_offset

    patch.setattr(ServedPartition, "append_marker", append)


def not_frozen_again(patch: pytest.MonkeyPatch) -> None:
    """A backup has partitions as they were before a commit that the state of transactions knows."""

    def is_frozen(partition: ServedPartition, frozen: Mapping[ServedPartition, int]) -> bool:
        is_state = partition.topic == TRANSACTIONS_TOPIC
        return frozen.get(partition) == partition.log.log_end_offset if is_state else partition in frozen

    patch.setattr("seglog_broker.tasks.snapshots._is_as_frozen", is_frozen)


def end_written_behind_what_comes_next(patch: pytest.MonkeyPatch) -> None:
    """The record that a transaction has ended, which need not be written at once, comes behind the next one's."""
    append = StateTopic.append
    put_off: dict[str, tuple[Any, ...]] = {}

    def append_end_later(topic: StateTopic, key: str, *rest: Any, is_urgent: bool = True) -> None:
        if is_urgent:
            append(topic, key, *rest)
            if key in put_off:
                append(topic, key, *put_off.pop(key))
        else:
            put_off[key] = rest

    patch.setattr(StateTopic, "append", append_end_later)


def fenced_by_its_own_end(patch: pytest.MonkeyPatch) -> None:
    """Who asks with the next epoch while the markers are written is taken for a zombie."""
    end = TransactionalId.end

    def fence(machine: TransactionalId, producer: ProducerIdAndEpoch, **rest: Any) -> ProducerIdAndEpoch:
        if machine.facts.state.is_ending:
            raise machine._fenced(producer.epoch)
        return end(machine, producer, **rest)

    patch.setattr(TransactionalId, "end", fence)
    patch.setattr("seglog_broker.coordinators.transactions.service.service.ENDED_SECONDS", 0)


MISTAKES: Final[Sequence[Mistake]] = (
    marker_before_state,
    state_before_fsync,
    place_before_fsync,
    fence_not_checked,
    commit_of_what_is_not_durable,
    last_stable_offset_too_high,
    aborted_not_entered,
    replayed_in_another_order,
    offsets_applied_before_the_marker,
    not_followed_after_a_start,
    no_timeout_after_a_start,
    complete_before_all_markers,
    markers_not_synced,
    expected_after_the_marker,
    abort_of_what_is_committed,
    groups_not_told,
    commits_while_a_snapshot_is_made,
    generation_not_checked,
    full_disk_taken_for_written,
    marker_given_up,
    not_frozen_again,
    end_written_behind_what_comes_next,
    fenced_by_its_own_end,
)

CAUGHT_SOON: Final = {
    fence_not_checked,
    last_stable_offset_too_high,
    aborted_not_entered,
    offsets_applied_before_the_marker,
    complete_before_all_markers,
    fenced_by_its_own_end,
}
"""Those that a part of a second is enough for."""


def failure(seed: int) -> BaseException | None:
    """What a run finds."""
    try:
        simulate(seed)
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever it is, it is what the run found
        return error
    return None


@ON_SOURCES
@pytest.mark.parametrize(
    "mistake",
    [pytest.param(mistake, marks=[] if mistake in CAUGHT_SOON else [pytest.mark.soak]) for mistake in MISTAKES],
    ids=lambda mistake: mistake.__name__,
)
def test_a_mistake_made_on_purpose_is_caught(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        mistake(patch)
        caught = next((seed for seed in range(SEEDS_UNTIL_CAUGHT) if failure(seed) is not None), None)
    assert caught is not None, f"{mistake.__name__} is not caught"
