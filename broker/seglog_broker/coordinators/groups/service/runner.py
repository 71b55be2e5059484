"""Runs groups: gives them the time, has what they decide written, and sends their answers when that is durable.

So nobody learns of a generation, an assignment or a commit that a power cut could take back.
"""

import heapq
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

import structlog
import trio

from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_requests import Topics
from seglog_broker.coordinators.groups.group_memory import Budget
from seglog_broker.coordinators.groups.membership import Answer, Effects, Limits, Now, Record
from seglog_broker.coordinators.groups.migration import downgraded, upgraded
from seglog_broker.coordinators.groups.records import ReadRecord, encode_key, least_size, topics_in
from seglog_broker.coordinators.groups.service.offsets_topic import Encoded, OffsetsTopic
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.errors import CoordinatorNotAvailableError, SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.steps import Steps

GROUPS_A_TURN: Final = 50
"""Groups that are called at their time before other tasks run."""

TOPICS_A_TURN: Final = 5_000
"""Topics in records of a group that are replayed before other tasks run; one record is never divided."""

log = structlog.get_logger()

ResultT = TypeVar("ResultT")

Group: TypeAlias = ClassicGroup | ConsumerGroup

GroupT = TypeVar("GroupT", ClassicGroup, ConsumerGroup)


class Waiting(Generic[ResultT]):
    """Waits for the result of a request: an ``Answer``. Only the first result, or error, counts."""

    __slots__ = ("_answered", "_error", "_result")

    def __init__(self) -> None:
        self._answered = trio.Event()
        self._result: ResultT | None = None
        self._error: SeglogError | None = None

    def __call__(self, result: ResultT, /) -> None:
        """Answer with ``result``."""
        if not self._answered.is_set():
            self._result = result
            self._answered.set()

    def fail(self, error: SeglogError) -> None:
        """Have ``wait`` raise ``error``."""
        if not self._answered.is_set():
            self._error = error
            self._answered.set()

    async def wait(self) -> ResultT:
        """The result, once there is one. Raises the error there is instead. May be cancelled."""
        await self._answered.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is set before the event


class GroupRunner:
    """The groups of a broker that have, or had, members."""

    def __init__(self, topic: OffsetsTopic, topics: Topics, config: LiveConfig, clock: Clock) -> None:
        self.groups: dict[str, Group] = {}
        self.effects = Effects()
        self.memory = Budget(
            "seglog.groups.memory.bytes", "members of groups", lambda: config.current.seglog_groups_memory_bytes
        )
        self._topic = topic
        self._topics = topics
        self._config = config
        self._clock = clock
        self._unwritten: dict[str, int] = {}  # group -> writes that are not durable yet
        self._owed: dict[str, dict[bytes, int]] = {}
        """By group: keys of records that it had before its protocol changed, and the number of that change.

        They are deleted with whatever is written of the group, until that is durable.
        """
        self._changes = 0
        self._after_failure: dict[str, int] = {}  # group -> how many of these were queued before an earlier one failed
        self._waiting: dict[Waiting[Any], str] = {}  # unanswered requests, and their groups
        self._deadlines: list[tuple[int, str]] = []  # a heap; those that are not in _wanted_at are out of date
        self._wanted_at: dict[str, int] = {}
        self._sooner = trio.Event()
        self._is_stopping = False
        self.note_restored: Callable[[str], None] = lambda _group: None
        """Called with the name of each group of the consumer protocol that comes from the log."""

    # --- What groups are given ----------------------------------------------------------------------------------------

    def now(self) -> Now:
        """This moment."""
        return Now(int(trio.current_time() * 1000), self._clock.now_ms())

    def limits(self) -> Limits:
        """The limits in force."""
        config = self._config.current
        return Limits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            consumer_max_size=config.group_consumer_max_size,
            consumer_assignors=config.group_consumer_assignors,
            consumer_migration_policy=config.group_consumer_migration_policy,
        )

    @staticmethod
    def new_id() -> str:
        """The random part of a member id."""
        return str(uuid.uuid4())

    def make(self, group: str) -> ClassicGroup:
        """A classic group without members, which is kept from now on."""
        made = self.groups[group] = ClassicGroup(group, self.effects, self.limits, self.new_id)
        return made

    def make_consumer(self, group: str) -> ConsumerGroup:
        """A group of the consumer protocol without members, which is kept from now on."""
        made = self.groups[group] = ConsumerGroup(group, self.effects, self.limits, self.new_id, self._topics)
        return made

    def restore(self, group: str, value: messages.GroupMetadataValue) -> None:
        """Keep a group as a record has it."""
        self.groups[group] = ClassicGroup.restored(group, value, self.effects, self.limits, self.new_id, self.now())
        self.schedule(group)

    async def restore_consumer(
        self, group: str, records: Iterable[ReadRecord], turn: Callable[[], Awaitable[None]]
    ) -> None:
        """Keep a group of the consumer protocol as its records have it; there is none before all are replayed.

        ``turn`` lets other tasks run.
        """
        made = ConsumerGroup(group, self.effects, self.limits, self.new_id, self._topics)
        count = 0
        for record in records:
            for _ in made.replay(record.key, record.kind, record.value):
                await turn()
            count += topics_in(record)
            if count >= TOPICS_A_TURN:
                count = 0
                await turn()
        made.restored(self.now())
        self.groups[group] = made
        self.schedule(group)
        self.note_restored(group)

    def drop_if_unused(self, group: str) -> None:
        """Forget a group that never had a generation, nor has anyone who wants to join it."""
        known = self.groups[group]
        if known.is_empty and known.generation == 0 and known.deadline_ms is None and group not in self._unwritten:
            del self.groups[group]
            self.memory.note(group, 0)

    def upgrade(self, known: ClassicGroup) -> Steps[None]:
        """Have a classic group, if it is still there, be one of the consumer protocol.

        Raises UnknownGroupError where it may not.
        """
        made = yield from upgraded(known, self.effects, self.limits, self.new_id, self._topics, self.now())

        def begin() -> ConsumerGroup:
            known.refuse_waits()
            made.begin()
            return made

        if self.groups.get(known.group_id) is known:
            self._replace(known, begin)
            self._carry_out(known.group_id)  # it may be a classic one again unless the member joins that it is for

    def downgrade(self, group: str) -> ClassicGroup:
        """Have a group of the consumer protocol be a classic one."""
        known = self.groups[group]
        assert isinstance(known, ConsumerGroup)
        return self._replace(
            known, lambda: downgraded(known, self.effects, self.limits, self.new_id, self._topics, self.now())
        )

    def _replace(self, known: Group, make: Callable[[], GroupT]) -> GroupT:
        """Keep another group in place of ``known``, whose records are deleted with the first of the other's."""
        group, records = known.group_id, self.effects.records
        count = len(records)
        made = self.groups[group] = make()
        of_made = records[count:]
        del records[count:]
        known.delete()
        self._changes += 1
        self._owed.setdefault(group, {}).update((encode_key(record), self._changes) for record in records[count:])
        records += of_made
        log.info("group_protocol_changed", group=group, kind=made.kind, members=len(made.members))
        return made

    def _with_owed(self, group: str, records: Sequence[Record]) -> Sequence[Encoded | Record]:
        """``records``, after the deletions that are owed and do not stand among them."""
        owed = self._owed.get(group)
        if not owed:
            return records
        there = set(map(encode_key, records))
        return [*((key, None) for key in owed if key not in there), *records]

    def remove(self, group: str) -> list[Encoded | Record]:
        """Keep an empty group no more; the records that delete it."""
        self.groups.pop(group).delete()
        self.memory.note(group, 0)
        records, self.effects.records = self.effects.records, []
        self.effects.replies = []  # to a group that is gone
        deleted = list(self._with_owed(group, records))
        self._owed.pop(group, None)
        return deleted

    # --- What groups want ---------------------------------------------------------------------------------------------

    def carry_out(self, group: str) -> None:
        """Have done what ``group`` wants after a call, and note when it is to be called again."""
        known = self.groups.get(group)
        if isinstance(known, ConsumerGroup) and known.may_be_classic:
            self.downgrade(group)
        self._carry_out(group)

    def _carry_out(self, group: str) -> None:
        effects = self.effects
        self.schedule(group)
        if not effects:
            return
        records, replies = effects.records, effects.replies
        effects.records, effects.replies = [], []
        if records or group in self._unwritten:
            self._unwritten[group] = self._unwritten.get(group, 0) + 1
            owed = dict(self._owed.get(group, ())) if records else {}
            then = partial(self._note_written, group, replies, owed)
            if not self._topic.refuse_too_large(group, sum(map(least_size, records)), then):
                self._topic.write(group, self._with_owed(group, records) if records else (), then)
        else:
            for answer, result in replies:
                answer(result)

    async def written(self, group: str) -> None:
        """Have done what ``group`` wants, and return when it is durable. Raises CoordinatorNotAvailableError."""
        waiting: Waiting[None] = Waiting()
        self.effects.replies.append((waiting, None))
        self.carry_out(group)
        await waiting.wait()

    async def wait(self, group: str, waiting: Waiting[ResultT]) -> ResultT:
        """The answer that ``waiting`` gets. Raises CoordinatorNotAvailableError, also when the broker stops first."""
        if self._is_stopping:
            raise _stopping(group)
        self._waiting[waiting] = group
        try:
            return await waiting.wait()
        finally:
            del self._waiting[waiting]

    def end_waits(self) -> None:
        """Answer all requests that wait for other members, now and from now on: the broker stops."""
        self._is_stopping = True
        for waiting, group in list(self._waiting.items()):
            waiting.fail(_stopping(group))

    def _note_written(
        self,
        group: str,
        replies: Sequence[tuple[Answer, Any]],
        deleted: Mapping[bytes, int],
        error: SeglogError | None,
    ) -> None:
        """Answer what waited for a write. ``deleted``: what of ``_owed`` was part of it."""
        if deleted and error is None and (owed := self._owed.get(group)) is not None:
            for key, change in deleted.items():
                if owed.get(key) == change:
                    del owed[key]
            if not owed:
                del self._owed[group]
        left = self._unwritten[group] - 1
        if left:
            self._unwritten[group] = left
        else:
            del self._unwritten[group]
        failed = error is not None
        if (suspect := self._after_failure.pop(group, 0)) > 1:
            self._after_failure[group] = suspect - 1
        if suspect and error is None:
            # Its answers may tell of what was to be written earlier, and is not.
            error = CoordinatorNotAvailableError(f"what group {group} decided before was not written; try again")
        for answer, result in replies:
            if error is None:
                answer(result)
            elif isinstance(answer, Waiting):
                answer.fail(error)
        if failed and left:
            self._after_failure[group] = left
        if failed and (known := self.groups.get(group)) is not None:
            known.write_failed(self.now())
            self.carry_out(group)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def schedule(self, group: str) -> None:
        """Note what a group takes of the budget, and when it is to be called."""
        known = self.groups.get(group)
        self.memory.note(group, 0 if known is None else known.size)
        deadline = None if known is None else known.deadline_ms
        if deadline is None:
            return  # an entry that is out of date does no harm
        wanted = self._wanted_at.get(group)
        if wanted is None or deadline < wanted:
            self._wanted_at[group] = deadline
            heapq.heappush(self._deadlines, (deadline, group))
            if self._deadlines[0][1] == group:
                self._sooner.set()

    async def run_timers(self) -> None:
        """Call groups when they want to be called, until cancelled."""
        while True:
            self._sooner = trio.Event()
            called = 0
            while self._deadlines and self._deadlines[0][0] <= self.now().monotonic_ms:
                deadline, group = heapq.heappop(self._deadlines)
                if self._wanted_at.get(group) != deadline:
                    continue
                del self._wanted_at[group]
                known = self.groups.get(group)
                if known is not None:
                    known.advance(self.now())
                    self.carry_out(group)
                called += 1
                if called % GROUPS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
            if self._deadlines:
                with trio.move_on_at((self._deadlines[0][0] + 1) / 1000):  # a moment is rounded down to its millisecond
                    await self._sooner.wait()
            else:
                await self._sooner.wait()


def _stopping(group: str) -> CoordinatorNotAvailableError:
    return CoordinatorNotAvailableError("the broker is stopping: connect again", group=group)
