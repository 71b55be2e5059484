"""The configuration in force, which a running broker can be given another of."""

from collections.abc import Callable

import trio

from seglog_broker.config import BrokerConfig


class LiveConfig:
    """``current`` is the configuration in force; tasks that sleep for long notice when it is another one."""

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
        self._changed = trio.Event()

    def replace(self, config: BrokerConfig) -> None:
        """Put another configuration in force, for all who ask from now on."""
        self.current = config
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        """Return after the next change."""
        await self._changed.wait()

    async def sleep(self, seconds: Callable[[], float], *, since: float | None = None) -> None:
        """Sleep ``seconds()``, which is asked for again after each change, counted from ``since`` or from now."""
        begin = trio.current_time() if since is None else since
        await self.sleep_until(lambda: begin + seconds())

    async def sleep_until(self, moment: Callable[[], float]) -> None:
        """Sleep until the loop's time ``moment()``, which is asked for again after each change."""
        await trio.lowlevel.checkpoint()
        while moment() > trio.current_time():
            with trio.move_on_at(moment()):
                await self._changed.wait()
