"""Members of one group that copy a topic in transactions, each with its own transactional id.

A member reads from where the group has committed, copies some records, and commits what it has read in the same
transaction. Between two members nothing but the generation of the group keeps the one that lost a partition, and does
not know it yet, from committing what the other one copies again.
"""

from abc import ABC, abstractmethod
from random import Random
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.coordinators.groups.membership import JoinRequest, JoinResult, SyncRequest, SyncResult
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_protocol.errors import (
    MemberIdRequiredError,
    RebalanceInProgressError,
    SeglogError,
)
from tests.unit.simulation.transactions.transacting import (
    KEPT,
    LATER,
    PARTITIONS,
    SHARED,
    SHARED_RECORDS,
    AbandonedError,
    Open,
    Session,
    Transacting,
    patiently,
)
from tests.unit.simulation.transactions.world import CrashedError, World

GROUP: Final = "members"
SESSION_MS: Final = 300
STALL_SECONDS_MAX: Final = 1.0
"""Longer than a session."""


async def group_offsets(world: World) -> dict[int, int]:
    """By partition of the shared topic, what the group has committed, when no open transaction may change it."""
    return {number: await _committed(world, number) for number in range(PARTITIONS[SHARED])}


async def _committed(world: World, number: int) -> int:
    found: list[Committed] = []

    async def look_up(broker: Broker) -> None:
        found[:] = broker.groups.committed(GROUP, [(SHARED, number)])

    while True:
        await patiently(world, look_up)
        if not found[0].is_unstable:
            return max(0, found[0].offset)
        await trio.sleep(0.02)


class Member(ABC):
    """One that joins, copies, loses its place and joins again."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self._world: Final = world
        self._name: Final = name
        self._dice: Final = Random(seed)
        self._own: Final = Transacting(world, name, self._dice)
        self._place = Committer()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._live()

    async def finish(self) -> None:
        """Work until some transactions of this member are committed, or nothing is left to be copied."""
        attempts = self._world.ledger.attempts
        before = len(attempts.get(self._name, ()))
        while not any(attempt.outcome for attempt in attempts.get(self._name, [])[before:]):
            if set((await group_offsets(self._world)).values()) == {SHARED_RECORDS}:
                return
            await self._live()

    async def _live(self) -> None:
        """Take part in one generation, as far as that goes."""
        try:
            session = await self._own.begin_session()
            assigned = await self._take_part()
            for _ in range(self._dice.randrange(1, 12)):
                await self._copy(session, self._dice.choice(assigned) if assigned else None)
        except (CrashedError, AbandonedError, *LATER):
            await trio.sleep(self._dice.random() * 0.1)
        except SeglogError:  # the broker knows another generation, or does not know the member
            self._forget()

    @abstractmethod
    async def _take_part(self) -> list[int]:
        """Be a member of the present generation; the partitions that it has."""

    @abstractmethod
    async def _beat(self) -> None:
        """Raises AbandonedError where other partitions may be the member's, and other errors where it is no member."""

    def _forget(self) -> None:
        """It is no member any more."""
        self._place = Committer()

    async def _copy(self, session: Session, partition: int | None) -> None:
        """Copy some records in a transaction; without a partition only be a member for a moment."""
        if partition is not None:
            begin = await _committed(self._world, partition)
            end = min(begin + self._dice.randrange(1, 4), SHARED_RECORDS)
            if begin < end:
                await self._copy_records(self._own.begin(session), partition, begin, end)
        await trio.sleep(self._dice.random() * 0.05)
        await self._beat()

    async def _copy_records(self, transaction: Open, partition: int, begin: int, end: int) -> None:
        texts = [f"{transaction.attempt.next_record()}/{partition}/{offset}" for offset in range(begin, end)]
        await self._own.send(transaction, (KEPT, partition % PARTITIONS[KEPT]), texts)
        if self._dice.random() < 0.15:
            await trio.sleep(self._dice.random() * STALL_SECONDS_MAX)
        await self._own.commit_offsets(transaction, GROUP, OffsetToCommit(SHARED, partition, end), self._place)
        if self._dice.random() < 0.05:
            raise AbandonedError  # and leaves it open
        await self._own.end(transaction, commit=self._dice.random() < 0.9)


class ClassicMember(Member):
    """One of the classic protocol."""

    async def _take_part(self) -> list[int]:
        joined = await self._join()
        members = sorted(member.member_id for member in joined.members)
        given: dict[str, bytes] = {}
        for number in range(PARTITIONS[SHARED] if members else 0):
            member = members[number % len(members)]
            given[member] = given.get(member, b"") + bytes([number])
        request = SyncRequest(joined.member_id, joined.generation, assignments=given)

        async def sync(broker: Broker) -> SyncResult:
            return await broker.groups.sync(GROUP, request)

        result = await self._world.call(sync)
        if result.error is not None:
            raise result.error
        return list(result.assignment)

    async def _join(self) -> JoinResult:
        async def join(broker: Broker) -> JoinResult:
            request = JoinRequest(
                self._place.member_id,
                None,
                self._name,
                "/1.2.3.4",
                SESSION_MS,
                SESSION_MS,
                "consumer",
                [("range", b"")],
            )
            return await broker.groups.join(GROUP, request)

        while True:
            result = await self._world.call(join)
            self._place = Committer(result.member_id, result.generation)
            if result.error is None:
                return result
            if not isinstance(result.error, MemberIdRequiredError | RebalanceInProgressError):
                raise result.error

    async def _beat(self) -> None:
        async def beat(broker: Broker) -> None:
            broker.groups.heartbeat(GROUP, self._place.member_id, self._place.generation)

        try:
            await self._world.call(beat)
        except RebalanceInProgressError:
            raise AbandonedError from None


class ConsumerMember(Member):
    """One of the consumer protocol: the broker assigns, and waits until a member has given up what another one gets."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        super().__init__(world, name, seed)
        self._assigned: list[int] = []
        self._joined = 0
        """How often it has joined."""

    async def _take_part(self) -> list[int]:
        if not self._place.member_id:
            self._joined += 1
            self._place = Committer(f"{self._name}-{self._joined}", 0)
        await self._exchange()
        return self._assigned

    async def _beat(self) -> None:
        before = self._assigned
        await self._exchange()
        if self._assigned != before:
            raise AbandonedError

    async def _exchange(self) -> None:
        """A heartbeat: the epoch and the partitions of the member are those of the answer."""
        member_id, epoch, _ = self._place

        async def beat(broker: Broker) -> tuple[int, list[int] | None]:
            topic = id_bytes(broker.directory.registry.topics[SHARED].id)
            request = ConsumerHeartbeat(member_id, epoch, owned={topic: frozenset(self._assigned)})
            if epoch == 0:
                request = request._replace(rebalance_timeout_ms=SESSION_MS, topics=[SHARED], owned={})
            result = await broker.groups.consumer_heartbeat(GROUP, request)
            assigned = None if result.assignment is None else sorted(result.assignment.get(topic, ()))
            return result.member_epoch, assigned

        epoch, assigned = await self._world.call(beat)
        self._place = Committer(member_id, epoch)
        if assigned is not None:
            self._assigned = assigned

    def _forget(self) -> None:
        super()._forget()
        self._assigned = []
