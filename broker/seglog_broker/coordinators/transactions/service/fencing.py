"""Fences transactional ids at the first start of a directory that is behind what clients were told: a restored one.

Clients went on from the moment that is restored. A producer may have had batches of its transaction acknowledged that
are gone, and ask for a commit of the others; it may have an epoch that would be given again. So nobody goes on as a
producer that is known then: what is open is aborted, what is decided is completed, and the id is forgotten. Its next
producer gets another producer id, above all that were given out meanwhile (``backup/restoring.py``).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.transactions.facts import TransactionState
from seglog_broker.coordinators.transactions.machine import TransactionalId
from seglog_broker.coordinators.transactions.service.idle_ids import LOOKED_AT_A_TURN
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.storage.directory.identity import is_behind, note_fenced
from seglog_protocol.errors import SeglogError

log = get_logger()


@dataclass(eq=False, repr=False)
class Fencing(Service):
    """Which transactional ids are being fenced: none, except at such a start."""

    _runtime: CoordinatorRuntime[TransactionalId]

    def __post_init__(self) -> None:
        self.ids: set[str] = set()
        """Those whose last transaction is being ended. Until then all requests about them are to come again."""
        self._is_wanted = is_behind(self._fs, self._directory.path)

    def begin(self, machine: TransactionalId) -> None:
        """Fence an id that was just loaded, where that is wanted."""
        if self._is_wanted:
            self.ids.add(machine.key)
            if machine.facts.state is TransactionState.ONGOING:
                machine.abort(self._runtime.now())
            self.go_on(machine)

    def go_on(self, machine: TransactionalId) -> None:
        """Forget an id that is being fenced if its last transaction has ended."""
        if machine.key in self.ids and machine.is_idle:
            self.ids.remove(machine.key)
            machine.forget()

    async def finish(self, ended: Callable[[str], Awaitable[None]]) -> None:
        """When all are fenced, durably, see to it that the next start fences nobody; else that one does all again.

        ``ended`` waits until a transaction has ended.
        """
        if not self._is_wanted:
            return
        for key in list(self.ids):
            await ended(key)
        machines = self._runtime.machines
        failed = "seglog-fencing could not be removed", "the next start fences all again"
        try:
            async for key, machine in self._scheduler.spread(list(machines.items()), LOOKED_AT_A_TURN):
                machine.write_again()
                await self._runtime.written(key)
            await self._replace_file(*failed, note_fenced, self._fs, self._directory.path)
        except SeglogError as error:
            log.warning("transactional_ids_not_fenced", reason=error.message)
        else:
            log.info("transactional_ids_fenced", transactional_ids=len(machines))
