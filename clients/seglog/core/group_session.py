"""The part of a consumer in a group that does no I/O, shared by all faces.

A face runs ``Steps``: generators that yield what is to be done (ask the broker, call the program back, pause) and are
sent what came of it, errors included. ``turn`` is what a consumer does before it goes on with records, whenever
``is_turn_due``: revoke partitions, join, read those that were assigned, commit.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, Literal, NamedTuple

from seglog.core.committed_offsets import Committed, commit
from seglog.core.committed_offsets import look_up_committed as look_up
from seglog.core.connection import Reply
from seglog.core.consumer import FetchingConsumer
from seglog.core.consumer_options import GroupOptions
from seglog.core.conversations import Ask, Conversation, ResultT, converse_async
from seglog.core.errors import count_of
from seglog.core.fetcher import PartitionPosition
from seglog.core.group_membership import Member, Membership, Watch
from seglog.core.moments import Edge, to_positions
from seglog.core.offsets import to_moment
from seglog.core.records import FetchedBatch, Record
from seglog.core.retries import Retries
from seglog.core.topics import partition_counts
from seglog.core.transactions import OpenTransaction, TransactionCore
from seglog_protocol import errors, messages
from seglog_protocol.isolation import READ_UNCOMMITTED

SLICE_SECONDS: Final = 0.25
"""A wait for records is looked up so often, whether there is something else to do first."""
CLOSE_SECONDS: Final = 5.0
"""How long each request of a consumer that is being closed may take."""

_log = logging.getLogger(__name__)

Event = Literal["assigned", "revoked", "lost"]


class Notify(NamedTuple):
    """Call the program back: partitions are assigned, revoked or lost."""

    event: Event
    partitions: list[int]


class Pause(NamedTuple):
    """Wait before the next attempt."""

    seconds: float


Step = Ask | Notify | Pause
Steps = Generator[Step, Any, ResultT]


class InHand(NamedTuple):
    """The records of a batch, from ``start`` on, that the program was given last and may still be processing."""

    state: PartitionPosition
    generation: int
    start: int
    is_whole: bool

    @property
    def done(self) -> int:
        """The offset up to which the program has processed records of this partition."""
        if self.state.generation != self.generation:
            return self.state.position  # it has moved elsewhere
        return self.start if self.is_whole else max(self.start, self.state.position - 1)


@dataclass(eq=False, repr=False)
class GroupSession:
    """The membership of a consumer and its positions.

    ``clock`` gives seconds, ``states`` the partitions that are read, ``assign`` replaces them.
    """

    _topic: str
    _options: GroupOptions
    _clock: Callable[[], float]
    _states: Callable[[], Mapping[int, PartitionPosition]]
    _assign: Callable[[list[PartitionPosition]], None]

    def __post_init__(self) -> None:
        self.membership = Membership(self._topic, self._options)
        self.in_hand: InHand | None = None
        self.is_inside = False
        """Whether the program waits for records."""
        self._committed: dict[int, int] = {}
        self._taken: set[int] = set()
        """Partitions that the group took away when the program had records of them that were not committed."""
        self._is_topic_gone = False
        """Whether the topic was deleted: what was read of it is committed no more, also where another has its name."""
        self._commit_at = self._clock() + self._options.auto_commit_interval
        self._has_stable = True
        """Whether the broker knows which offsets are stable."""

    # --- Records handed out -------------------------------------------------------------------------------------------

    def hand_out(self, state: PartitionPosition, start: int, *, is_whole: bool = False) -> None:
        """The program gets records of this partition from ``start`` on."""
        self.in_hand = InHand(state, state.generation, start, is_whole)

    def enter(self) -> None:
        """The program asks for more records: it has processed all that it was given."""
        self.in_hand, self.is_inside = None, True

    def done(self) -> dict[int, int]:
        """By partition, the offset up to which the program has processed records."""
        in_hand = self.in_hand
        return {
            partition: in_hand.done if in_hand is not None and in_hand.state is state else state.position
            for partition, state in self._states().items()
        }

    @property
    def is_finished(self) -> bool:
        """Whether iteration ends: everything assigned is read to its end, or paused."""
        states = self._states()
        if not states:
            return not self._options.follow
        return all(state.is_finished or state.is_paused for state in states.values())

    # --- Watching -----------------------------------------------------------------------------------------------------

    def watch(self, now: float) -> Watch:
        """The request that keeps the membership alive at ``now``, and when to call this again."""
        in_hand = self.in_hand
        progress = None
        if not self.is_inside:
            progress = (id(in_hand), None if in_hand is None else in_hand.state.position)
        request, seconds = self.membership.watch(now, progress)
        if self._options.auto_commit and self._commit_at > now:
            seconds = min(seconds, self._commit_at - now)
        return Watch(request, seconds)

    def is_turn_due(self) -> bool:
        """Whether ``turn`` is to be run before the program gets more records."""
        return self._must_reconcile() or self._is_commit_due()

    def _must_reconcile(self) -> bool:
        member = self.membership
        return member.must_join or member.is_lost or member.assigned != self._states().keys()

    def _is_commit_due(self) -> bool:
        return self._options.auto_commit and self._clock() >= self._commit_at and bool(self._uncommitted())

    def answered(self, request: messages.Request, now: float, answer: Reply | errors.SeglogError) -> None:
        """Process the answer, or the error, to a request of ``watch``; that to leaving changes nothing."""
        if not isinstance(request, messages.GroupHeartbeatRequest):
            return
        error = answer if isinstance(answer, errors.SeglogError) else None
        if not isinstance(answer, errors.SeglogError):
            try:
                messages.decode_reply(answer.header, messages.GroupHeartbeatReply)
            except errors.SeglogError as refused:
                error = refused
        self.membership.answered(request, now, error)

    def watching(self, interrupt: Callable[[], None]) -> Steps[None]:
        """The steps, without an end, that keep the membership alive while the program works.

        ``interrupt`` is called where a turn may have become due: before the group hears that the member leaves, and
        others read.
        """
        membership = self.membership
        while True:
            watch = self.watch(self._clock())
            interrupt()
            if watch.request is not None:
                answer: Reply | errors.SeglogError
                try:
                    answer = yield Ask(watch.request)
                except errors.SeglogError as error:
                    answer = error
                self.answered(watch.request, self._clock(), answer)
            if membership.counts_due(self._clock()):
                with suppress(errors.SeglogError):  # it is looked up again
                    membership.counted((yield from partition_counts(membership.topics)))
            interrupt()
            yield Pause(0.0 if watch.request is not None else watch.seconds)

    def tell(self, step: Notify) -> object:
        """Call the program back; returns what it returns."""
        if step.event == "assigned":
            return None if self._options.on_assigned is None else self._options.on_assigned(step.partitions)
        if self._options.on_revoked is None:
            return None
        return self._options.on_revoked(step.partitions, step.event == "lost")

    # --- Turns --------------------------------------------------------------------------------------------------------

    def turn(self) -> Steps[None]:
        """Revoke and join until this member reads exactly its current assignment; and commit when due.

        Raises FencedInstanceError; what cannot be retried; and what can, after ``reconnect_timeout``.
        """
        retries = Retries(self._options.reconnect_timeout)
        while self._must_reconcile():
            try:
                yield from self._reconcile()
            except errors.SeglogError as error:
                pause, _ = retries.failed(error, self._clock())
                yield Pause(pause)
        if self._is_commit_due():
            yield from self._commit_quietly()

    def _reconcile(self) -> Steps[None]:
        """One step towards the current assignment."""
        membership = self.membership
        reads = self._states().keys()
        assigned = membership.assigned
        if membership.is_lost:
            membership.is_lost = False
            yield from self._revoke(set(reads), is_lost=True)
            return
        membership.raise_fenced()
        if membership.must_join:
            if reads and not membership.is_cooperative:
                yield from self._revoke(set(reads))
            else:
                yield from membership.joining(sorted(reads))
            return
        if unwanted := reads - assigned:
            yield from self._revoke(unwanted)
            if membership.is_cooperative:
                membership.must_join = True  # so that others are assigned what it revoked
            return
        yield from self._add_assigned(assigned - reads)

    def _revoke(self, partitions: set[int], *, is_lost: bool = False) -> Steps[None]:
        if not is_lost and self._options.auto_commit:
            yield from self._commit_quietly(partitions)
        if partitions:
            yield Notify("lost" if is_lost else "revoked", sorted(partitions))
        self._taken |= {
            partition
            for partition, state in self._states().items()
            if partition in partitions and state.read_to > self._committed.get(partition, 0)
        }
        self._assign([state for partition, state in self._states().items() if partition not in partitions])
        for partition in partitions:
            self._committed.pop(partition, None)

    def _add_assigned(self, partitions: frozenset[int]) -> Steps[None]:
        """Read assigned partitions from the committed offset on, or from ``start``."""
        member, options = self.membership.member, self._options
        found = yield from self._look_up_stable(sorted(partitions))
        committed = {partition: known.offset for partition, known in found.items()}
        fresh: list[PartitionPosition] = []
        if committed:
            fresh += yield from options.places(self._topic, sorted(committed), committed)
        fresh += yield from self._from_start(sorted(partitions - committed.keys()))
        if self.membership.member != member:
            return  # and another generation by now
        self._committed |= committed
        self._is_topic_gone = False
        self._assign([*self._states().values(), *fresh])
        yield Notify("assigned", sorted(partitions))

    def _look_up_stable(self, partitions: list[int]) -> Conversation[dict[int, Committed]]:
        """The committed offsets that no open transaction may change; a broker without transactions has no others."""
        if self._has_stable:
            try:
                found = yield from look_up(self._options.group, self._topic, partitions, stable=True)
            except errors.UnsupportedVersionError:
                self._has_stable = False
            else:
                return found
        return (yield from look_up(self._options.group, self._topic, partitions))

    def _from_start(self, partitions: list[int]) -> Conversation[list[PartitionPosition]]:
        """States that begin at ``start``, or at the end of the log that is nearest to it."""
        if not partitions:
            return []
        states = yield from self._options.places(self._topic, partitions, self._options.place)
        for state in states:
            state.position = state.fetch_offset = min(max(state.position, state.earliest), state.latest)
            if state.end is not None:
                state.end = min(state.end, state.latest)
        return states

    def restart(self, error: errors.OffsetOutOfRangeError) -> Conversation[int]:
        """The offset of ``start`` in a partition whose position is out of range, which a warning tells."""
        at = self._states()[error.partition].position
        place = self._options.place
        moment = None if isinstance(place, Mapping) else to_moment(place)
        if moment is Edge.EARLIEST or (moment is Edge.LATEST and self._options.isolation == READ_UNCOMMITTED):
            target = error.earliest if moment is Edge.EARLIEST else error.latest
        else:
            (state,) = yield from self._from_start([error.partition])
            target = state.position
        where = f"{self._topic}-{error.partition}"
        if at < error.earliest:
            lost = f"{count_of(error.earliest - at, 'offset')} of {where} ({at} to {error.earliest - 1})"
            why = f"{lost} went before the group read them: {error.reason}"
        else:
            why = f"{where} ends at {error.latest}, before offset {at}, which the group would have read next"
        _log.warning("%s: %s; it goes on at %d", self._options.group, why, target)
        return target

    # --- Commits ------------------------------------------------------------------------------------------------------

    def _uncommitted(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """The offsets of these partitions that are ahead of the committed ones."""
        wanted = None if partitions is None else set(partitions)
        return {
            partition: offset
            for partition, offset in self.done().items()
            if (wanted is None or partition in wanted) and offset > self._committed.get(partition, -1)
        }

    def _commit_quietly(self, partitions: Iterable[int] | None = None) -> Steps[None]:
        """Commit the processed offsets. After a failure the next commit includes them, or records are read again."""
        now = self._clock()
        self._commit_at = now + self._options.auto_commit_interval
        offsets, member = self._uncommitted(partitions), self.membership.member
        if not offsets or member is None or self._is_topic_gone:
            return
        try:
            yield from self._commit(offsets, member)
        except errors.SeglogError as error:
            self._commit_at = now + min(1.0, self._options.auto_commit_interval)
            if isinstance(error, errors.UnknownTopicError | errors.InconsistentTopicIdError):
                self._is_topic_gone = True
                _log.warning("%s: offsets were not committed: topic %s was deleted", self._options.group, self._topic)
            elif error.retriable or isinstance(error, errors.GroupError):
                _log.debug("%s: offsets were not committed: %s", self._options.group, error.message)
            else:
                _log.warning("%s: offsets were not committed: %s", self._options.group, error.message)

    def _commit(self, offsets: Mapping[int, int], member: Member, metadata: str | None = None) -> Conversation[None]:
        options = self._options
        try:
            for topic_id, some in self._by_id(offsets).items():
                yield from commit(options.group, self._topic, topic_id, some, member, options.instance_id, metadata)
        except errors.SeglogError as error:
            self.membership.refused(error, member)
            raise
        self.note_committed(offsets)

    def _by_id(self, offsets: Mapping[int, int]) -> dict[str, dict[int, int]]:
        """Offsets by the id of the topic: one, but for a topic that was made again."""
        by_id: dict[str, dict[int, int]] = {}
        for partition, offset in offsets.items():
            state = self._states().get(partition)
            by_id.setdefault("" if state is None else state.topic_id, {})[partition] = offset
        return by_id

    def committing(
        self, offsets: Mapping[int, int] | Mapping[str, int] | None, metadata: str | None = None
    ) -> Steps[None]:
        """As ``Consumer.commit``."""
        if metadata is not None and not isinstance(metadata, str):
            raise TypeError(f"metadata is text or None, not {metadata!r}")
        places, member = self._to_commit(offsets, least=1 if metadata is None else 0)
        retries = Retries(self._options.reconnect_timeout)
        while places:
            try:
                yield from self._commit(places, member, metadata)
                places = {}
            except errors.SeglogError as error:
                pause, _ = retries.failed(error, self._clock())
                yield Pause(pause)

    def _to_commit(
        self, offsets: Mapping[int, int] | Mapping[str, int] | None, *, least: int = 1
    ) -> tuple[dict[int, int], Member]:
        """The offsets, or the positions that are ``least`` ahead of the committed ones, and the member they are of."""
        if offsets is not None and not isinstance(offsets, Mapping):
            raise TypeError(f"offsets is {{partition: offset}} or None, not {offsets!r}")
        given = None if offsets is None else to_positions(offsets)
        self.membership.raise_fenced()
        member = self.membership.member
        if member is None:
            raise errors.UnknownMemberError(
                f"the consumer is no member of {self._options.group} at the moment, so it has no partitions to commit "
                "for; it joins when records are asked for",
                group=self._options.group,
            )
        if given is None:
            return {
                partition: state.position
                for partition, state in self._states().items()
                if state.position >= self._committed.get(partition, -1) + least
            }, member
        for partition in given.keys() - self._states().keys():
            raise ValueError(f"this consumer does not read partition {partition} of {self._topic}")
        return given, member

    def in_transaction(
        self, core: TransactionCore, transaction: OpenTransaction, offsets: Mapping[int, int] | Mapping[str, int] | None
    ) -> Conversation[dict[int, int]]:
        """Commit in a transaction, as ``Transaction.commit_offsets``; returns the offsets, for ``note_committed``."""
        if self._options.auto_commit:
            raise ValueError("a consumer whose offsets are committed in transactions has auto_commit=False")
        places, member = self._to_commit(offsets)
        transaction.check()  # after waits for other calls of the consumer
        if self._taken:
            raise errors.IllegalGenerationError(
                f"the group {self._options.group} has rebalanced, and records of {self._topic} that were read and not "
                f"committed (partitions {', '.join(map(str, sorted(self._taken)))}) will be read again: abort the "
                "transaction, by leaving its block with this error, and call rewind()",
                group=self._options.group,
            )
        try:
            yield from core.committing_offsets(
                transaction, self._options.group, self._topic, self._by_id(places), member, self._options.instance_id
            )
        except errors.SeglogError as error:
            self.membership.refused(error, member)
            raise
        return places

    def note_committed(self, offsets: Mapping[int, int]) -> None:
        """These are committed, in a transaction that is committed too if they were in one."""
        self._committed |= offsets

    def rewind(self) -> None:
        """Read all partitions again from their committed offsets, with the next turn."""
        self.in_hand = None
        self._committed.clear()
        self._taken.clear()
        self._assign([])

    # --- Ending -------------------------------------------------------------------------------------------------------

    def closing(self) -> Steps[None]:
        """Commit what is processed, call ``on_revoked``, leave the group."""
        partitions = self._states().keys()
        if self.membership.member is not None and self._options.auto_commit:
            yield from self._commit_quietly()
        if partitions:
            yield Notify("lost" if self.membership.member is None else "revoked", sorted(partitions))
        request = self.membership.leave()
        if request is not None:
            try:
                yield Ask(request)
            except errors.SeglogError as error:
                _log.debug("%s: the broker was not told that a member leaves: %s", self._options.group, error.message)

    def answer_seconds(self, request: messages.Request, usual: float) -> float:
        """The timeout of a request; joining and syncing may take as long as the slowest member of the group."""
        is_slow = isinstance(request, (messages.JoinGroupRequest, messages.SyncGroupRequest))
        return usual + self._options.max_poll_interval if is_slow else usual


class GroupConsumerBase(FetchingConsumer):
    """The common part of both kinds of GroupConsumer, which inherit from this one first: records are handed out."""

    options: GroupOptions
    _session: GroupSession
    _asked: Callable[[Ask, float, float], Awaitable[Reply]]
    """Asks over a link that is opened again after it broke: seconds for another one, and for the answer."""
    _begin_watching: Callable[[], None]
    """Has ``_watch`` run beside the program, from now on."""
    _slice_seconds = SLICE_SECONDS
    _is_leaving = False
    """Whether it is being closed: each request may take ``CLOSE_SECONDS`` at most."""

    def _records(self, batch: FetchedBatch) -> Iterator[Record]:
        self._session.hand_out(self._fetcher.states[batch.partition], batch.start_offset)
        return super()._records(batch)

    def _listed(self, batch: FetchedBatch) -> list[Record]:
        found = super()._listed(batch)
        self._session.hand_out(self._fetcher.states[batch.partition], batch.start_offset, is_whole=True)
        return found

    def _whole(self, batch: FetchedBatch) -> FetchedBatch:
        self._session.hand_out(self._fetcher.states[batch.partition], batch.start_offset, is_whole=True)
        return super()._whole(batch)

    async def _next(self) -> FetchedBatch | None:
        self._session.enter()
        try:
            return await self._next_of_group()
        finally:
            self._session.is_inside = False

    def _check_leaving(self) -> None:
        """Raise ClientClosedError where it is being closed."""
        if self._is_leaving:
            raise self._closed()

    async def _next_of_group(self) -> FetchedBatch | None:
        """Take turns in the group and fetches, until there is a batch, the end, or no more time."""
        retries = Retries(self.options.reconnect_timeout)
        is_last = False
        while True:
            self._check_leaving()
            self._is_interrupted = self._is_closed
            if self._session.is_turn_due():
                await self._run(self._session.turn())
            try:
                batch = self._queued()
            except errors.OffsetOutOfRangeError as error:
                target = await self._run(self._session.restart(error))
                self._fetcher.skip_to(self._fetcher.states[error.partition], target, error)
                continue
            if batch is not None or self._session.is_finished or is_last:
                return batch
            if self._fetcher.states:
                await self._fetch_or_reconnect(retries)
            else:
                await self._rest(max(0.0, min(SLICE_SECONDS, self._wait_until - self._now())))
            is_last = self._now() >= self._wait_until

    async def _run(self, steps: Steps[ResultT]) -> ResultT:
        """Run ``steps`` to their end."""
        return await converse_async(steps, self._do, self._rest)

    async def _do(self, step: Step) -> Reply | None:
        """One step of the program's side; the first has the membership watched."""
        if isinstance(step, Notify):
            called = self._session.tell(step)
            if isawaitable(called):
                await called
            return None
        if isinstance(step, Pause):
            await self._rest(step.seconds)
            return None
        if self._is_leaving:
            return await self._asked(step, 0.0, CLOSE_SECONDS)
        self._begin_watching()
        seconds = self._session.answer_seconds(step.request, self._seconds)
        return await self._asked(step, self.options.reconnect_timeout, seconds)

    async def _watch(self) -> None:
        """Keep the membership alive while the program works."""
        await converse_async(self._session.watching(self._interrupt_if_due), self._watched, self._rest)

    async def _watched(self, step: Step) -> Reply | None:
        """One step of the watch."""
        if isinstance(step, Ask):
            patience = min(self._seconds, self.options.session_timeout)
            return await self._asked(step, patience, self._seconds)
        assert isinstance(step, Pause)
        await self._rest(step.seconds)
        return None

    def _interrupt_if_due(self) -> None:
        """Hand out no more records of this batch if a rebalance or a commit is due."""
        if self._session.is_turn_due():
            self._is_interrupted = True

    def note_committed(self, offsets: Mapping[int, int]) -> None:
        """The transaction is committed in which these offsets were."""
        self._session.note_committed(offsets)
