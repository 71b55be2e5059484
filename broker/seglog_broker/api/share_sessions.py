"""The share sessions of members of share groups: which share partitions a member fetches from, request by request.

A session begins with epoch 0; each later request has the next epoch, and names only what changes. It ends with epoch
-1, or with the connection that began it. Source: Kafka's ShareSessionCache, ShareSession.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from seglog_broker.runtime.begun import Signal
from seglog_protocol.kafka.error_codes import ErrorCode

FIRST_EPOCH: Final = 0
LAST_EPOCH: Final = -1

_EPOCH_MAX: Final = 2**31 - 1

PARTITIONS_MAX: Final = 1_000_000
"""Share partitions in all sessions together. Each takes some 200 bytes."""

Place = tuple[bytes, int]
"""A partition: the sixteen bytes of its topic's id, and its number."""


class SessionRefusedError(Exception):
    """A request does not fit its share session: it is answered with this code of Kafka's."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message


class ShareSession:
    """The session of one member: ``places`` are fetched from."""

    __slots__ = ("_wait", "connection", "epoch", "fetches", "group", "member", "places")

    def __init__(self, group: str, member: str, connection: Any) -> None:
        """``connection`` is what the client's connection has for its own; it is only compared."""
        self.group = group
        self.member = member
        self.connection = connection
        self.epoch = FIRST_EPOCH + 1
        """That of the next request."""
        self.places: dict[Place, None] = {}
        self.fetches = 0
        """Counts requests that fetch; an earlier one does not wait."""
        self._wait: Signal | None = None

    def note_wait(self, signal: Signal) -> None:
        """A request waits until ``signal`` is set."""
        self._wait = signal

    def end_wait(self) -> None:
        """Have the request that waits for records answered."""
        self.fetches += 1
        waiting, self._wait = self._wait, None
        if waiting is not None:
            waiting.set()

    def rotated(self, epoch: int) -> list[Place]:
        """Its places, beginning with another one in each request, so that none is starved."""
        places = list(self.places)
        at = epoch % len(places) if len(places) > 1 and epoch > 0 else 0
        return places[at:] + places[:at]


class ShareSessions:
    """All share sessions of the broker."""

    def __init__(self, sessions_max: Callable[[], int]) -> None:
        self.partitions_max = PARTITIONS_MAX
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_connection: dict[Any, dict[ShareSession, None]] = {}
        self.partitions = 0
        """The share partitions in all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, group: str, member: str) -> ShareSession | None:
        """The session of a member."""
        return self._sessions.get((group, member))

    def begin(self, group: str, member: str, connection: Any, places: Iterable[Place]) -> ShareSession:
        """Begin a session, in place of an earlier one. Raises SessionRefusedError where there are too many."""
        before = self.find(group, member)
        if before is not None:
            self.remove(before)
        if len(self._sessions) >= self._sessions_max():
            raise SessionRefusedError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"there are {len(self._sessions)} share sessions: group.share.max.share.sessions allows no more",
            )
        session = ShareSession(group, member, connection)
        self._sessions[group, member] = session
        self._of_connection.setdefault(connection, {})[session] = None
        self._add(session, places)
        return session

    def go_on(self, group: str, member: str, epoch: int) -> ShareSession:
        """The session that a request with ``epoch`` belongs to, whose next epoch it is. Raises SessionRefusedError."""
        session = self.find(group, member)
        if session is None and epoch != FIRST_EPOCH:
            raise SessionRefusedError(
                ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {member} of {group} has no share session: begin one"
            )
        if session is None or epoch not in (LAST_EPOCH, session.epoch):
            raise SessionRefusedError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"epoch {epoch} is not the next one of the share session of member {member}: begin another session",
            )
        if epoch != LAST_EPOCH:
            session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session

    def change(self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        """Add places to a session, and take some out. Raises SessionRefusedError where there are too many."""
        self._add(session, added)
        for place in forgotten:
            if place in session.places:
                del session.places[place]
                self.partitions -= 1

    def remove(self, session: ShareSession) -> None:
        """End a session, if it has not ended; a request of it that waits is answered."""
        if self.find(session.group, session.member) is not session:
            return
        del self._sessions[session.group, session.member]
        del self._of_connection[session.connection][session]
        if not self._of_connection[session.connection]:
            del self._of_connection[session.connection]
        self.partitions -= len(session.places)
        session.places = {}
        session.end_wait()

    def of_connection(self, connection: Any) -> list[ShareSession]:
        """The sessions that a connection has begun."""
        return list(self._of_connection.get(connection, ()))

    def _add(self, session: ShareSession, places: Iterable[Place]) -> None:
        for place in places:
            if place not in session.places:
                if self.partitions >= self.partitions_max:
                    raise SessionRefusedError(
                        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                        f"all share sessions together have {self.partitions_max} partitions, and no room for more",
                    )
                self.partitions += 1
                session.places[place] = None
