"""The configuration in force, which may be replaced while the broker runs."""

from collections.abc import Callable

import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.config.client_quotas import QuotaTable
from seglog_broker.config.dynamic_config import NO_SETTINGS, DynamicConfig, with_dynamic


class LiveConfig:
    """``current`` is the configuration in force; sleeping tasks are woken when it is replaced.

    It is made of ``static``, which file, environment and flags gave, and of ``dynamic``, the settings made at run time.
    Who replaces one of them holds ``lock`` from its decision on.
    """

    def __init__(self, static: BrokerConfig, dynamic: DynamicConfig = NO_SETTINGS) -> None:
        self.static = static
        self.dynamic = dynamic
        self.current = with_dynamic(static, dynamic)
        self.quotas = QuotaTable(dynamic.clients)
        """Of clients."""
        self.lock = trio.Lock()
        self._changed = trio.Event()

    def replace(self, static: BrokerConfig, dynamic: DynamicConfig | None = None) -> None:
        """Put another configuration in force and wake who waits; None keeps settings. Raises InvalidConfigError."""
        dynamic = self.dynamic if dynamic is None else dynamic
        self.current = with_dynamic(static, dynamic)
        if dynamic.clients is not self.dynamic.clients:
            self.quotas.adopt(dynamic.clients)
        self.static, self.dynamic = static, dynamic
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        """Return after the next change."""
        await self._changed.wait()

    async def sleep(self, seconds: Callable[[], float], *, since: float | None = None) -> None:
        """Sleep ``seconds()``, from ``since`` or from now; it is called again after each change."""
        begin = trio.current_time() if since is None else since
        await self.sleep_until(lambda: begin + seconds())

    async def sleep_until(self, moment: Callable[[], float]) -> None:
        """Sleep until ``moment()``, in the loop's time; it is called again after each change."""
        await trio.lowlevel.checkpoint()
        while moment() > trio.current_time():
            with trio.move_on_at(moment()):
                await self._changed.wait()
