"""The memory of transactional ids, which has a limit: idle ids are forgotten, after a time or to make room."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.transactions.machine import TransactionalId
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_protocol.errors import CoordinatorNotAvailableError, SeglogError

KEY: Final = "seglog.transactions.memory.bytes"

CROWDED_PART: Final = 0.9
"""From this part of the limit on, ids that are idle are forgotten before they expire."""
ROOMY_PART: Final = 0.75
"""The part of the limit down to which they are forgotten."""


class TransactionMemory:
    """Counts what transactional ids take."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit: Final = limit
        self.crowded = trio.Event()
        """Set while idle ids should be forgotten; whoever begins to do that puts a new one in its place."""
        self._sizes: Final[dict[str, int]] = {}
        self._is_full = False
        self.used = 0
        """Bytes."""

    def note(self, transactional_id: str, size: int) -> None:
        """Note that an id takes ``size`` bytes; 0: it is gone."""
        self.used += size - self._sizes.get(transactional_id, 0)
        if size:
            self._sizes[transactional_id] = size
        else:
            self._sizes.pop(transactional_id, None)
        if self.used > self._limit() * CROWDED_PART:
            self.crowded.set()

    @property
    def excess(self) -> int:
        """Bytes that should be made free; 0 where there is room."""
        limit = self._limit()
        return self.used - int(limit * ROOMY_PART) if self.used > limit * CROWDED_PART else 0

    def check(self, transactional_id: str, size: int) -> None:
        """Raise CoordinatorNotAvailableError where the limit has no room for ``size`` bytes more of an id."""
        limit = self._limit()
        if self.used + size <= limit:
            self._is_full = False
            return
        self.crowded.set()
        if not self._is_full:
            self._is_full = True
            log.warning(
                "transactions_refused",
                transactional_id=transactional_id[:100],
                key=KEY,
                limit=limit,
                used=self.used,
                remedy="raise the key",
            )
        raise CoordinatorNotAvailableError(
            f"transactions take {self.used:,} bytes, and {KEY} is {limit:,}: no {size:,} more for "
            f"{transactional_id[:100]}; try again, use fewer transactional ids, or raise the key"
        )


LOOKED_AT_A_TURN: Final = budget.items_of(cost=1)
"""Transactional ids that are looked at before other tasks run."""

FORGOTTEN_A_WRITE: Final = budget.items_of(cost=20)
"""Those that are forgotten together."""

CROWDED_SECONDS: Final = 1.0
"""The shortest time between two searches because of memory."""

log = get_logger()


@dataclass(eq=False, repr=False)
class IdExpiry(Service):
    """Forgets idle transactional ids, after ``transactional.id.expiration.ms``.

    Nothing that was sent before can count afterwards: a producer that comes back gets another producer id.
    """

    _runtime: CoordinatorRuntime[TransactionalId]
    _memory: TransactionMemory

    async def run(self) -> None:
        """Search every ``transaction.remove.expired.transaction.cleanup.interval.ms``, and when memory is crowded."""
        while True:
            swept = trio.current_time()

            def next_sweep(swept: float = swept) -> float:
                interval_ms = self._config.current.transaction_remove_expired_transaction_cleanup_interval_ms
                return swept + interval_ms / 1000

            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_when_crowded, nursery.cancel_scope)
                await self._config.sleep_until(next_sweep)
                nursery.cancel_scope.cancel()
            if self._memory.crowded.is_set():
                await trio.sleep(max(0.0, swept + CROWDED_SECONDS - trio.current_time()))
            self._memory.crowded = trio.Event()
            await self.sweep()

    async def _cancel_when_crowded(self, scope: trio.CancelScope) -> None:
        await self._memory.crowded.wait()
        scope.cancel()

    async def sweep(self) -> None:
        """Search once."""
        before_ms = self._clock_trust.now_ms() - self._config.current.transactional_id_expiration_ms
        expired: list[str] = []
        idle: list[tuple[int, str]] = []
        async for machine in self._scheduler.spread(list(self._runtime.machines.values()), LOOKED_AT_A_TURN):
            if machine.is_idle and machine.facts.updated_ms <= before_ms:
                expired.append(machine.key)
            elif machine.is_idle:
                idle.append((machine.facts.updated_ms, machine.key))
        expired += self._in_excess(expired, idle)
        forgotten = 0
        async for some in self._scheduler.parts(expired, FORGOTTEN_A_WRITE):
            forgotten += await self._forget(some)
        if forgotten:
            log.info("transactional_ids_forgotten", transactional_ids=forgotten)

    def _in_excess(self, expired: list[str], idle: list[tuple[int, str]]) -> list[str]:
        """Those that were idle longest, as many as there is too little memory for."""
        machines = self._runtime.machines
        excess = self._memory.excess - sum(machines[key].size for key in expired if key in machines)
        found: list[str] = []
        for _, key in sorted(idle) if excess > 0 else ():
            if excess <= 0:
                break
            if key in machines:
                found.append(key)
                excess -= machines[key].size
        return found

    async def _forget(self, keys: Sequence[str]) -> int:
        removed: list[Waiting[None]] = []
        for key in keys:
            machine = self._runtime.machines.get(key)
            if machine is not None and machine.is_idle:  # as it may be in use by now
                removed.append(self._runtime.remove(key))
        for each in removed:
            try:
                await each.wait()
            except SeglogError as error:
                log.warning("transactional_ids_not_forgotten", reason=error.message)
                break
        return len(removed)
