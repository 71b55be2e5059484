"""Members of one group that copy a topic in transactions, each with its own transactional id.

A member reads from where the group has committed, copies some records, and commits what it has read in the same
transaction. Between two members nothing but the generation of the group keeps the one that lost a partition, and does
not know it yet, from committing what the other one copies again.
"""

from random import Random
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.groups.membership import JoinRequest, JoinResult, SyncRequest, SyncResult
from seglog_protocol.errors import (
    MemberIdRequiredError,
    RebalanceInProgressError,
    SeglogError,
)
from tests.simulation.transactions.requests import KEPT, LATER, PARTITIONS, SHARED, SHARED_RECORDS, patiently
from tests.simulation.transactions.transacting import AbandonedError, Open, Session, Transacting
from tests.simulation.transactions.world import CrashedError, World

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


class Member:
    """One that joins, copies, loses its place and joins again."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self._world: Final = world
        self._name: Final = name
        self._dice: Final = Random(seed)
        self._own: Final = Transacting(world, name, self._dice)
        self._member_id = ""
        self._generation = -1

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
            joined = await self._join()
            assigned = await self._sync(joined)
            for _ in range(self._dice.randrange(1, 12)):
                await self._copy(session, self._dice.choice(assigned) if assigned else None)
        except (CrashedError, AbandonedError, *LATER):
            await trio.sleep(self._dice.random() * 0.1)
        except SeglogError:  # the broker knows another generation, or does not know the member
            self._member_id = ""

    async def _join(self) -> JoinResult:
        while True:
            result = await self._world.call(self._ask_to_join)
            if result.error is None:
                self._member_id, self._generation = result.member_id, result.generation
                return result
            self._member_id = result.member_id
            if not isinstance(result.error, MemberIdRequiredError | RebalanceInProgressError):
                raise result.error

    async def _ask_to_join(self, broker: Broker) -> JoinResult:
        request = JoinRequest(
            self._member_id, None, self._name, "/1.2.3.4", SESSION_MS, SESSION_MS, "consumer", [("range", b"")]
        )
        return await broker.groups.join(GROUP, request)

    async def _sync(self, joined: JoinResult) -> list[int]:
        """The partitions that it has: as many for each member."""
        members = sorted(member.member_id for member in joined.members)
        given: dict[str, bytes] = {}
        for number in range(PARTITIONS[SHARED] if members else 0):
            member = members[number % len(members)]
            given[member] = given.get(member, b"") + bytes([number])

        async def sync(broker: Broker) -> SyncResult:
            return await broker.groups.sync(GROUP, SyncRequest(self._member_id, self._generation, assignments=given))

        result = await self._world.call(sync)
        if result.error is not None:
            raise result.error
        return list(result.assignment)

    async def _beat(self) -> None:
        """Raises RebalanceInProgressError where it is to join again, and other errors where it is no member."""

        async def beat(broker: Broker) -> None:
            broker.groups.heartbeat(GROUP, self._member_id, self._generation)

        await self._world.call(beat)

    async def _copy(self, session: Session, partition: int | None) -> None:
        """Copy some records in a transaction; without a partition only be a member for a moment."""
        if partition is not None:
            begin = await _committed(self._world, partition)
            end = min(begin + self._dice.randrange(1, 4), SHARED_RECORDS)
            if begin < end:
                await self._copy_records(self._own.begin(session), partition, begin, end)
        await trio.sleep(self._dice.random() * 0.05)
        try:
            await self._beat()
        except RebalanceInProgressError:
            raise AbandonedError from None

    async def _copy_records(self, transaction: Open, partition: int, begin: int, end: int) -> None:
        texts = [f"{transaction.attempt.next_record()}/{partition}/{offset}" for offset in range(begin, end)]
        await self._own.send(transaction, (KEPT, partition % PARTITIONS[KEPT]), texts)
        if self._dice.random() < 0.15:
            await trio.sleep(self._dice.random() * STALL_SECONDS_MAX)
        committer = Committer(self._member_id, self._generation)
        await self._own.commit_offsets(transaction, GROUP, OffsetToCommit(SHARED, partition, end), committer)
        if self._dice.random() < 0.05:
            raise AbandonedError  # and leaves it open
        await self._own.end(transaction, commit=self._dice.random() < 0.9)
