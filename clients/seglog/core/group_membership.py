"""A consumer's membership in a group, without I/O: which request is next, and what an answer means.

``joining`` leads through a generation: join, assign if this member is the leader, sync. In between, ``watch`` says when
a heartbeat is due, and whether the program is too slow; ``answered`` and ``refused`` take what came of it. The thread
of the program joins, another one watches; ``_lock`` guards what both change. Times are seconds of one monotonic clock.
"""

import logging
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from seglog.core import assignors
from seglog.core.consumer_options import GroupOptions
from seglog.core.conversations import Conversation, ask, patiently
from seglog.core.errors import copied
from seglog.core.topics import partition_counts
from seglog_protocol import errors, messages
from seglog_protocol.kafka import Malformed

HEARTBEAT_SECONDS: Final = 3.0
METADATA_SECONDS: Final = 10.0
"""How often a leader looks whether the topics of its group have got more partitions."""
RETRY_SECONDS: Final = 0.5
"""When a heartbeat without an answer is sent again, at most."""

_log = logging.getLogger(__name__)


class Member(NamedTuple):
    """A member id and its generation."""

    member_id: str
    generation: int


class Watch(NamedTuple):
    """The request to send now, if any, and the seconds until the next call."""

    request: messages.Request | None
    seconds: float


class Membership:
    """The membership of one consumer."""

    def __init__(self, topic: str, options: GroupOptions) -> None:
        self._topic = topic
        self.options = options
        self.is_cooperative = set(options.assignors) == {assignors.COOPERATIVE}
        """Whether partitions are kept while the group makes a new generation."""
        self._heartbeat_interval = min(HEARTBEAT_SECONDS, options.session_timeout / 3)
        self.member: Member | None = None
        """None while the consumer is no member."""
        self.assigned: frozenset[int] = frozenset()
        """The current assignment: partitions of its topic."""
        self.must_join = True
        self.is_lost = False
        """Whether the membership was lost: others may read its partitions."""
        self.fenced: errors.SeglogError | None = None
        """The error that fenced it: another consumer has its instance id."""
        self.is_leader = False
        self._member_id: str | None = None
        self._lock = threading.Lock()
        self._is_joining = False
        self._heartbeat_at = 0.0
        self._attempts = 0
        self._counts: dict[str, int] = {}  # as the leader has assigned them
        self._counts_at = 0.0
        self._polled: object = None
        self._polled_at = 0.0
        self._watched_at = math.inf

    # --- Joining ------------------------------------------------------------------------------------------------------

    def joining(self, owned: Iterable[int]) -> Conversation[None]:
        """Join the next generation, which sets ``assigned``.

        ``owned`` are the partitions that a cooperative member keeps while it rejoins. Repeated while the broker reads
        what groups committed, and where the generation ends before it is complete. Raises FencedInstanceError and the
        errors that another attempt meets, too.
        """
        with self._lock:
            self._is_joining, self.must_join = True, False
        try:
            is_done = False
            while not is_done:
                is_done = yield from patiently(
                    lambda pause: self._join(owned, pause),
                    lambda error: isinstance(error, errors.CoordinatorLoadingError),
                )
        except BaseException:
            self.must_join = True
            raise
        finally:
            self._is_joining = False

    def _join(self, owned: Iterable[int], pause: float) -> Conversation[bool]:
        """One attempt, after ``pause`` seconds; False: once more."""
        options = self.options
        try:
            reply, _ = yield from ask(self._join_request(owned), messages.JoinGroupReply, after_seconds=pause)
        except errors.MemberIdRequiredError as error:
            self._member_id = error.member_id
            return False
        except errors.InvalidSessionTimeoutError as error:
            raise errors.InvalidSessionTimeoutError(
                f"session_timeout is from {error.minimum / 1000:g} s to {error.maximum / 1000:g} s at this broker "
                "(group.min.session.timeout.ms, group.max.session.timeout.ms of its configuration), not "
                f"{options.session_timeout:g} s",
                group=error.group,
                minimum=error.minimum,
                maximum=error.maximum,
            ) from error
        except errors.SeglogError as error:
            if not self._must_rejoin(error):
                raise
            return False
        self._member_id = reply.member_id
        self.is_leader = reply.leader == reply.member_id
        member = Member(reply.member_id, reply.generation)
        assignments = None
        if reply.members is not None and not reply.skip_assignment:
            assignments = yield from self._assignments(reply.protocol, reply.members)
        request = messages.SyncGroupRequest(
            options.group, member.member_id, member.generation, options.instance_id, assignments=assignments
        )
        try:
            synced, _ = yield from ask(request, messages.SyncGroupReply)
        except (errors.RebalanceInProgressError, errors.IllegalGenerationError):
            return False
        except errors.SeglogError as error:
            if not self._must_rejoin(error):
                raise
            return False
        with self._lock:
            self.assigned = frozenset(number for topic, number in _read(synced.assignment) if topic == self._topic)
            self.member, self._heartbeat_at, self._attempts = member, -1.0, 0
            self.must_join = False
        _log.debug("%s: member %s of generation %d", options.group, member.member_id, member.generation)
        return True

    def _join_request(self, owned: Iterable[int]) -> messages.JoinGroupRequest:
        options, member, topic = self.options, self.member, self._topic
        if member is None:
            metadata = assignors.write_subscription([topic])
        else:
            metadata = assignors.write_subscription([topic], [(topic, p) for p in owned], member.generation)
        return messages.JoinGroupRequest(
            options.group,
            int(options.session_timeout * 1000),
            int(options.max_poll_interval * 1000),
            [messages.JoinProtocol(name, metadata) for name in options.assignors],
            member_id=self._member_id,
            instance_id=options.instance_id,
            client_id=options.client_id,
        )

    def _must_rejoin(self, error: errors.SeglogError) -> bool:
        """Whether the group no longer knows the member, so that it rejoins without an id."""
        if isinstance(error, errors.FencedInstanceError):
            self._fence(error)
        if not isinstance(error, errors.UnknownMemberError):
            return False
        with self._lock:
            self._forget(error.message)
        return True

    def _assignments(
        self, protocol: str, members: Sequence[messages.JoinGroupMember]
    ) -> Conversation[list[messages.SyncGroupAssignment]]:
        """The target assignment of all members, computed by the leader."""
        subscriptions: dict[str, assignors.Subscription] = {}
        for member in members:
            try:
                subscriptions[member.member_id] = assignors.read_subscription(member.metadata, member.instance_id)
            except Malformed as error:
                _log.warning("%s: %s reads nothing: %s", self.options.group, member.member_id, error)
                subscriptions[member.member_id] = assignors.Subscription(frozenset())
        topics = sorted({topic for subscription in subscriptions.values() for topic in subscription.topics})
        self._counts = yield from partition_counts(topics)
        assigned = assignors.ASSIGNORS[protocol](subscriptions, self._counts)
        return [
            messages.SyncGroupAssignment(member_id, assignors.write_assignment(pairs))
            for member_id, pairs in assigned.items()
        ]

    # --- Watching -----------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """The topics of the whole group, for its leader."""
        return sorted(self._counts)

    def watch(self, now: float, progress: object) -> Watch:
        """The request due at ``now``: a heartbeat, or LeaveGroup when the program exceeds ``max_poll_interval``.

        ``progress`` equals that of the last call if the program has not asked for records since; None while it waits
        for them.
        """
        with self._lock:
            late, self._watched_at = now - self._watched_at, now
            if late > self.options.session_timeout and (self.member is not None or self.is_lost):
                _log.warning(
                    "%s: nothing could send heartbeats for %.1f s, longer than session_timeout (%g s), so that the "
                    "group gives its partitions of %s to others, and records that are not committed come again. If the "
                    "program has computed on its event loop, let a thread do that (asyncio.to_thread, "
                    "trio.to_thread.run_sync)",
                    self.options.group,
                    late,
                    self.options.session_timeout,
                    self._topic,
                )
            if self.member is None or self._is_joining:
                self._polled_at = now
                return Watch(None, self._heartbeat_interval)
            left = self.options.max_poll_interval
            if progress is None or progress != self._polled:
                self._polled, self._polled_at = progress, now
            else:
                left += self._polled_at - now
            if left <= 0:
                return Watch(self._leave_slow_program(self.member), self._heartbeat_interval)
            if self._heartbeat_at < 0:  # just joined
                self._heartbeat_at = now + self._heartbeat_interval
                self._counts_at = now + METADATA_SECONDS
            if now < self._heartbeat_at:
                return Watch(None, min(left, self._heartbeat_at - now))
            self._heartbeat_at = now + self._heartbeat_interval
            member, options = self.member, self.options
            request = messages.GroupHeartbeatRequest(
                options.group, member.member_id, member.generation, options.instance_id
            )
            return Watch(request, min(left, self._heartbeat_interval))

    def _leave_slow_program(self, member: Member) -> messages.LeaveGroupRequest | None:
        options = self.options
        _log.warning(
            "%s: the program has not asked for records for %g s (max_poll_interval), so that others get its partitions "
            "of %s; it joins again when it asks",
            options.group,
            options.max_poll_interval,
            self._topic,
        )
        self._forget("the program was too slow")
        return self._leave_request(member.member_id, f"no records asked for within {options.max_poll_interval:g} s")

    def answered(self, request: messages.GroupHeartbeatRequest, now: float, error: errors.SeglogError | None) -> None:
        """Process the answer to a heartbeat; one of another generation is ignored."""
        with self._lock:
            if self._is_joining or self.member != (request.member_id, request.generation):
                return
            if error is None:
                self._attempts = 0
            else:
                self._refused(error, now)

    def refused(self, error: errors.SeglogError, member: Member | None) -> None:
        """Process the error of another request of ``member``, such as a commit."""
        with self._lock:
            if not self._is_joining and self.member is not None and member == self.member:
                self._refused(error, None)

    def _refused(self, error: errors.SeglogError, now: float | None) -> None:
        if isinstance(error, errors.FencedInstanceError):
            self._fence(error)
        elif isinstance(error, errors.RebalanceInProgressError):
            self.must_join = True
        elif isinstance(error, errors.UnknownMemberError):
            self._forget(error.message)
        elif isinstance(error, (errors.IllegalGenerationError, errors.FencedMemberEpochError)):
            self._lose(error.message)
        elif now is not None:
            self._heartbeat_at = now + min(self._heartbeat_interval, RETRY_SECONDS)
            self._attempts += 1
            if self._attempts == 1 and isinstance(error, errors.GroupError) and not error.retriable:
                _log.warning("%s: a heartbeat failed: %s", self.options.group, error.message)

    def counts_due(self, now: float) -> bool:
        """Whether the leader must look up the partition counts of its group's topics."""
        with self._lock:
            if not self.is_leader or self.member is None or self._is_joining or now < self._counts_at:
                return False
            self._counts_at = now + METADATA_SECONDS
            return True

    def counted(self, counts: dict[str, int]) -> None:
        """Process partition counts; the group rebalances if they have changed."""
        with self._lock:
            if self.is_leader and not self._is_joining and counts.keys() == self._counts.keys():
                self.must_join = self.must_join or counts != self._counts

    # --- Ending -------------------------------------------------------------------------------------------------------

    def leave(self) -> messages.LeaveGroupRequest | None:
        """End the membership. The request to send; None for a static member, which may rejoin, and for no member.

        A member that has begun to join leaves as well: the group would wait for it until its session times out.
        """
        with self._lock:
            member_id, self.member, self._member_id = self._member_id, None, None
            self.assigned = frozenset()
            self.must_join = True
            return None if member_id is None else self._leave_request(member_id, "the consumer was closed")

    def _leave_request(self, member_id: str, reason: str) -> messages.LeaveGroupRequest | None:
        if self.options.instance_id is not None:
            return None
        return messages.LeaveGroupRequest(self.options.group, [messages.LeavingGroupMember(member_id, reason=reason)])

    def raise_fenced(self) -> None:
        """Raises FencedInstanceError if another consumer has taken this one's instance id."""
        if self.fenced is not None:
            raise copied(self.fenced) from self.fenced

    def _fence(self, error: errors.SeglogError) -> None:
        self.fenced = error
        self._lose(error.message)

    def _forget(self, why: str) -> None:
        self._member_id = None
        self._lose(why)

    def _lose(self, why: str) -> None:
        if self.member is not None:
            _log.info("%s: no longer a member: %s", self.options.group, why)
        self.is_lost = self.is_lost or self.member is not None
        self.member = None
        self.assigned = frozenset()
        self.must_join = True


def _read(assignment: bytes) -> set[tuple[str, int]]:
    try:
        return assignors.read_assignment(assignment)
    except Malformed as error:
        raise errors.InconsistentGroupProtocolError(f"the leader's assignment cannot be read: {error}") from error
