"""Browsers that were let in: by the token that the console prints, or by an account of the broker."""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from seglog_console.commands import Outcome
from seglog_console.viewer import Viewer

SESSIONS_MAX: Final = 256
"""Of browsers; the one that was idle longest makes room."""
IDLE_SECONDS: Final = 12 * 3600.0
STREAMS_MAX: Final = 8
"""Live pages of one browser at a time; it opens one for each tab that can be seen."""


@dataclass(slots=True)
class Session:
    """One browser. ``password`` is that of the account, for commands; it is kept in memory alone."""

    id: str
    csrf: str
    seen: float
    viewer: Viewer
    account: str = ""
    password: str = field(default="", repr=False)
    is_own_viewer: bool = True
    """Whether the viewer ends with the session; the console's own does not."""
    is_open: bool = True
    came_back: bool = False
    """Whether a request has brought its cookie: pages of others can have sessions opened, and never bring one."""
    streams: int = 0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """The outcome of the last change, by the page that has still to show it."""


class Sessions:
    """All browsers, and the token that lets the next one in: each token once, then there is another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, Session] = {}
        self.token = secrets.token_urlsafe(24)

    def is_token(self, given: str) -> bool:
        """True for the token, once: the next browser needs the next one."""
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return False
        self.token = secrets.token_urlsafe(24)
        return True

    def open(self, viewer: Viewer, account: str = "", password: str = "", *, is_own_viewer: bool = True) -> Session:
        """A new browser."""
        while len(self._open) >= SESSIONS_MAX:
            self.close(min(self._open.values(), key=lambda session: (session.came_back, session.seen)))
        session = Session(
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
            self._clock(),
            viewer,
            account,
            password,
            is_own_viewer,
        )
        self._open[session.id] = session
        return session

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None for one that has ended."""
        now = self._clock()
        for each in list(self._open.values()):
            if now - each.seen > IDLE_SECONDS:
                self.close(each)
        session = self._open.get(cookie)
        if session is not None:
            session.seen, session.came_back = now, True
        return session

    def close(self, session: Session) -> None:
        """Forget a browser and its password."""
        self._open.pop(session.id, None)
        session.password, session.is_open = "", False
        if session.is_own_viewer:
            session.viewer.close()

    def close_all(self) -> None:
        """Forget all browsers."""
        for session in list(self._open.values()):
            self.close(session)
