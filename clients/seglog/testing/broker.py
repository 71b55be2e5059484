"""``Broker``: a real broker in a test, by ``with`` and by ``async with``."""

from seglog.testing.async_broker import AsyncBroker
from seglog.testing.blocking import BlockingBroker
from seglog.testing.errors import BrokerStoppedError, NotArrivedError, NotPossibleError

__all__ = ["AsyncBroker", "Broker", "BrokerStoppedError", "NotArrivedError", "NotPossibleError"]


class Broker(BlockingBroker):
    """A real broker, native and on Kafka's wire, in a thread of this process or, with ``process``, beside it.

    It keeps its data in ``directory``, by default a temporary one that it removes, or in ``memory``. ``listen`` and
    ``kafka`` are where it listens, by default on free ports. Keys of the configuration are keyword arguments
    (``log_retention_ms=1000`` is ``log.retention.ms``) or in ``config``. ``seed`` makes what is random the same again.

    With ``users``, passwords by name, whoever connects has to log in, on both wires; those in ``admins`` administer.
    With ``tls`` both wires are encrypted, with a certificate of the authority ``ca``.

    Use it by ``with``, or by ``start`` and ``close``; by ``async with`` from trio and asyncio, where it is an
    ``AsyncBroker``. Any thread may use it, but no process that was forked.
    """

    async def __aenter__(self) -> AsyncBroker:
        self._async = AsyncBroker(self)
        return await self._async.__aenter__()

    async def __aexit__(self, *reason: object) -> None:
        await self._async.__aexit__(*reason)
