"""A console: the broker that it shows, who may see that, and all that its browsers share."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import seglog
from seglog.asyncio import Client, connect
from seglog_console.commands import Commands
from seglog_console.sessions import Sessions
from seglog_console.templating import Templates
from seglog_console.viewer import Viewer

CLIENT_ID: Final = "seglog-console"
_LOGINS_AT_ONCE: Final = 4
_READINGS_AT_ONCE: Final = 8
"""Pages that read records, and steps of searches: each may have a large batch in memory."""


@dataclass
class Console:
    """How pages come to the broker, and who may see them.

    ``security`` are keywords of ``seglog.connect``: the account in them, if any, is for pages of a console that is
    read-only. ``has_token`` is False where anybody who reaches the console may see what the broker shows to anybody.
    ``hosts`` are the names that it answers to; ``announce`` is called with each token that the next browser needs.
    """

    server: str
    security: Mapping[str, Any] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset({"localhost", "127.0.0.1", "::1"})
    port: int = 0
    has_token: bool = True
    has_tls: bool = False
    is_read_only: bool = False
    is_local: bool = False
    announce: Callable[[str], None] = lambda _: None
    version: str = seglog.__version__

    def __post_init__(self) -> None:
        self.sessions = Sessions()
        self.templates: Templates
        self.commands = Commands()
        self.tasks: asyncio.TaskGroup
        self._ending = asyncio.Event()
        self._shared: Viewer | None = None
        self._opening = asyncio.Lock()
        self.readings = asyncio.Semaphore(_READINGS_AT_ONCE)
        self.logins = asyncio.Semaphore(_LOGINS_AT_ONCE)

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers share cookies between the ports of a host."""
        return f"seglog-console-{self.port}"

    def client(self, **account: Any) -> Client:
        """A client that is not connected yet, of an account or of none."""
        ways = {name: value for name, value in self.security.items() if name in {"tls", "mechanism"}}
        return connect(self.server, client_id=CLIENT_ID, **ways | account)

    async def shared(self) -> Viewer:
        """The viewer of all browsers that need no account of their own. Raises what connecting raises."""
        async with self._opening:
            if self._shared is None:
                account = dict(self.security) if self.is_read_only else {}
                self._shared = await Viewer.opened(self.tasks, lambda: self.client(**account))
            return self._shared

    async def is_ending(self, seconds: float) -> bool:
        """Wait so long, or until the console ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        return self._ending.is_set()

    def end(self) -> None:
        """Have streams end: a server waits for them before anything else."""
        self._ending.set()

    def close(self) -> None:
        """End the commands that run, and let all clients go."""
        self.commands.close()
        self.sessions.close_all()
        if self._shared is not None:
            self._shared.close()
