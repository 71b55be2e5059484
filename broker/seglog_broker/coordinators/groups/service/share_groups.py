"""Share groups: the heartbeats of their members, and when the state of their partitions is made and deleted."""

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import trio

from seglog_broker.coordinators.groups.consumer_member import JOINING_EPOCH
from seglog_broker.coordinators.groups.consumer_requests import HeartbeatResult
from seglog_broker.coordinators.groups.service.cleanup import Sweep
from seglog_broker.coordinators.groups.service.machines import GroupMachines
from seglog_broker.coordinators.groups.share import Initialize, ShareGroup, ShareHeartbeat
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_protocol.errors import SeglogError, UnknownGroupError

log = get_logger()


class ShareStates(Protocol):
    """Where the state of share partitions is kept."""

    async def initialize(self, group: str, topic_id: bytes, start_offsets: Mapping[int, int], state_epoch: int) -> None:
        """Make the state of partitions; durable when it returns. Raises SeglogError."""

    async def delete(self, group: str, topic_id: bytes, partitions: frozenset[int]) -> None:
        """Delete the state of partitions, of some of which there may be none; durable when it returns."""


@dataclass(eq=False, repr=False)
class ShareGroups(Service):
    """Serves members of share groups, and has the state of their partitions made and deleted.

    ``states`` is set by whoever makes it, before ``run``.
    """

    _machines: GroupMachines
    _check: Callable[[str], None]  # raises what any request about a group would raise
    _has_offsets: Callable[[str], bool]

    def __post_init__(self) -> None:
        self._runtime = self._machines.runtime
        self.states: ShareStates
        due, self._due = trio.open_memory_channel[Initialize](math.inf)
        self._machines.follow = due.send_nowait
        self.sweep = Sweep(lambda: list(self._runtime.machines), self._forget_topics, self._scheduler)
        """Forgets topics that were deleted, as ``states`` does by itself."""

    async def heartbeat(self, group: str, request: ShareHeartbeat) -> HeartbeatResult:
        """A heartbeat, by which members also join and leave; returns when it is durable.

        Raises the GroupError that tells the member what to do, or InvalidRequestError.
        """
        request.check(group)
        self._check(group)
        self._machines.check_memory(group, request.member_id, request.size)
        known = self.find(group, makes=request.member_epoch == JOINING_EPOCH)
        result = await self._runtime.in_steps(group, known.heartbeat(request, self._runtime.now()))
        await self._runtime.written(group)
        return result

    def find(self, group: str, *, makes: bool = False) -> ShareGroup:
        """A share group; with ``makes`` a new one if there is none. Raises UnknownGroupError, also for other kinds."""
        known = self._runtime.machines.get(group)
        if known is None and not self._has_offsets(group):
            if not makes:
                raise UnknownGroupError(f"Share group {group} not found.", group=group)
            made = self._runtime.machines[group] = self._machines.share(group)
            return made
        if known is None or known.share is None:
            raise UnknownGroupError(f"Group {group} is not a share group.", group=group)
        return known.share

    # --- The state of share partitions --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Have states made and deleted, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sweep.run)
            async for wanted in self._due:
                try:
                    await self._make(wanted)
                except SeglogError as error:
                    log.warning("share_state_not_initialized", group=wanted.group[:100], reason=error.message)

    async def _make(self, wanted: Initialize) -> None:
        """Make the state of partitions, and note that in the group; or that it failed, with the error."""
        is_done = False
        try:
            for topic, starts in wanted.start_offsets.items():
                await self.states.initialize(wanted.group, topic, starts, wanted.epoch)
            is_done = True
        finally:
            known = self._runtime.machines.get(wanted.group)
            if known is not None and known.share is not None:
                steps = known.share.end_initializing(wanted.start_offsets, is_done=is_done)
                await self._runtime.in_steps(wanted.group, steps)
                self._runtime.carry_out(wanted.group)

    async def alter(self, group: str, start_offsets: Mapping[bytes, Mapping[int, int]]) -> None:
        """Have a group without members, perhaps a new one, read partitions of topics, by their ids, from these offsets.

        It is durable when this returns. Raises UnknownGroupError, NonEmptyGroupError, and as ``states``.
        """
        self._check(group)
        known = self.find(group, makes=True)
        known.check_delete()
        await self._runtime.in_steps(group, known.begin_initializing(start_offsets, self._runtime.now()))
        await self._runtime.written(group)
        await self._make(Initialize(group, known.generation, start_offsets))
        await self._runtime.written(group)

    async def forget(self, group: str, topics: AbstractSet[bytes] | None = None) -> None:
        """Delete the state of topics that a group without members has read; None: of all that it has read.

        It is durable when this returns; of a group that is being deleted it stays noted that it was to be deleted.
        Raises UnknownGroupError, NonEmptyGroupError, and as ``states``: then ask again.
        """
        self._check(group)
        known = self.find(group)
        known.check_delete()
        partitions = await self._runtime.in_steps(group, known.begin_deleting(topics))
        await self._runtime.written(group)
        for topic, (_, numbers) in partitions.items():
            await self.states.delete(group, topic, numbers)
        if topics is not None:
            await self._runtime.in_steps(group, known.forget_topics(partitions.keys()))
            await self._runtime.written(group)

    async def _forget_topics(self, group: str) -> None:
        known = self._runtime.machines.get(group)
        if known is not None and known.share is not None:
            await self._runtime.in_steps(group, known.share.forget_gone_topics())
            self._runtime.carry_out(group)
