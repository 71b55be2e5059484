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

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import pytest
import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffsets, Key, Pending
from seglog_broker.coordinators.groups.service.commits import Commits
from seglog_broker.coordinators.topic_writer import TopicWriter
from seglog_broker.coordinators.transactions.machine import Ending
from seglog_broker.coordinators.transactions.service.markers import MarkerWriter
from seglog_broker.coordinators.transactions.service.service import TransactionService
from seglog_broker.partitions.cuts import FIELDS, CutMaker, Moment
from seglog_broker.partitions.partition_table import states_of
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.messages import AppendRequest
from tests.support import ON_SOURCES, each_case, some_seeds
from tests.unit.simulation.transactions.simulation import simulate

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
    append_decided, write_some = CoordinatorRuntime.append_decided, TopicWriter._write_some

    async def write_later(writer: TopicWriter) -> None:
        await trio.sleep(0.05)
        await write_some(writer)

    def end_at_once(runtime: CoordinatorRuntime[Any], key: str, *, is_urgent: bool = True) -> None:
        effects = runtime.outbox.effects
        runtime.outbox.effects = [effect for effect in effects if not isinstance(effect, Ending)]
        for effect in effects:
            if isinstance(effect, Ending):
                runtime._carry_out(effect)
        append_decided(runtime, key, is_urgent=is_urgent)

    patch.setattr(CoordinatorRuntime, "append_decided", end_at_once)
    patch.setattr(TopicWriter, "_write_some", write_later)
    patch.setattr("seglog_broker.coordinators.transactions.service.markers.MARKERS_A_ROUND", 1)


def state_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """What is decided takes effect when it is written, not when it is on the disk."""

    def request(partitions: list[object], ack: str, *, create: bool) -> AppendRequest:
        del ack
        return AppendRequest(partitions, "os", create=create)  # type: ignore[arg-type]

    patch.setattr("seglog_broker.coordinators.topic.AppendRequest", request)


def last_stable_offset_too_high(patch: pytest.MonkeyPatch) -> None:
    """Readers at read_committed get all that there is."""
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.log_end_offset))


def offsets_applied_before_the_marker(patch: pytest.MonkeyPatch) -> None:
    """An offset that a transaction commits counts at once."""

    def hold(offsets: CommittedOffsets, producer_id: int, group: str, key: Key, pending: Pending) -> None:
        del producer_id
        offsets.put(group, key, pending.committed)

    patch.setattr(CommittedOffsets, "hold", hold)


def complete_before_all_markers(patch: pytest.MonkeyPatch) -> None:
    """The end of a transaction is complete when its first partition has the marker."""
    add = MarkerWriter.add

    def add_one(markers: MarkerWriter, ending: Ending, epoch: int) -> None:
        topics = list(ending.partitions.items())[:1]
        add(markers, ending._replace(partitions={topic: frozenset([min(numbers)]) for topic, numbers in topics}), epoch)

    patch.setattr(MarkerWriter, "add", add_one)


def commits_while_a_snapshot_is_made(patch: pytest.MonkeyPatch) -> None:
    """A backup has partitions from before a commit, and others from after it."""
    patch.setattr(TransactionService, "commits_held", lambda _service: nullcontext())


def generation_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A member of an older generation may commit offsets for partitions that are another's now."""
    patch.setattr(Commits, "check", lambda *_, **__: None)


def cut_in_many_turns(patch: pytest.MonkeyPatch) -> None:
    """A copy by a cut has partitions of different moments."""
    make_durable = CutMaker._make_durable

    async def look_again(cuts: CutMaker, moment: Moment) -> None:
        await make_durable(cuts, moment)
        for place, partition in enumerate(moment.partitions):
            await trio.sleep(0.01)
            moment.states[place * FIELDS : (place + 1) * FIELDS] = states_of([partition])

    patch.setattr(CutMaker, "_make_durable", look_again)


MISTAKES: Final[Sequence[Mistake]] = (
    marker_before_state,
    state_before_fsync,
    last_stable_offset_too_high,
    offsets_applied_before_the_marker,
    complete_before_all_markers,
    commits_while_a_snapshot_is_made,
    cut_in_many_turns,
    generation_not_checked,
)

CAUGHT_SOON: Final = {
    last_stable_offset_too_high,
    offsets_applied_before_the_marker,
    complete_before_all_markers,
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
