"""The connections to one broker: how they are secured, and its outage. Shared by all links of a client, of any face."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from seglog.core.authentication import RENEWED_AFTER, Authentication, Session, check_session, lasting
from seglog.core.connection import Connection, Reply
from seglog.core.retries import Outage
from seglog.core.security import Target
from seglog_protocol.messages import HelloReply

if TYPE_CHECKING:
    from seglog.core.tls import TlsSession


class Access:
    """The files that ``target`` names are read once, when this is made.

    ``authentication`` is None without an account. Raises OSError and ValueError for files that cannot be used.
    """

    def __init__(self, target: Target) -> None:
        self.address = target.address
        self.outage = Outage(str(target.address))
        self.authentication = None if target.identity is None else Authentication(target)
        self._context = None
        if target.tls is not None:
            from seglog.tls_contexts import context_of  # noqa: PLC0415 - with OpenSSL, which only TLS needs

            self._context = context_of(target.tls)

    def tls_session(self) -> "TlsSession | None":
        """TLS for one more connection; None without."""
        if self._context is None:
            return None
        from seglog.core.tls import TlsSession  # noqa: PLC0415 - as above

        return TlsSession(self._context, self.address)


Handler = Callable[[Reply], None]
"""Called by the thread or task that reads, without a lock; must not block and must not raise."""


class LinkBase:
    """The common part of both kinds of Link: who the client is, and who takes which reply.

    ``hello`` is the broker's reply when the link was opened. ``tls`` is established, or None without TLS. ``session``
    is None without an account.
    """

    hello: HelloReply

    def __init__(self, server: str, tls: "TlsSession | None") -> None:
        self.server = server
        self.tls = tls
        self.session: Session | None = None
        self._authentication: Authentication | None = None
        self._renewer: object = None  # the thread or task that renews the session
        self._renewed_from: float | None = None  # when the session is to be renewed; None: never
        self._connection = Connection(server)
        self._handlers: dict[int, Handler] = {}

    def _is_session_over(self) -> bool:
        """Whether the session ends soon."""
        return self._renewed_from is not None and lasting() >= self._renewed_from

    def _authenticated(self, authentication: Authentication, session: Session, began: float) -> None:
        self.session = session
        self._authentication = authentication
        self._renewed_from = None if session.seconds is None else began + session.seconds * RENEWED_AFTER

    def _received(self, size: int) -> Iterator[tuple[Handler, Reply]]:
        """The whole replies after another ``size`` bytes, and who takes them."""
        self._connection.received(size)
        while (reply := self._connection.next_reply()) is not None:
            if self._renewed_from is not None:
                check_session(reply.header, self.server)
            handler = self._handlers.pop(reply.request_id, None)
            if handler is not None:
                yield handler, reply


@dataclass(eq=False)
class DialerBase:
    """The common part of both kinds of Dialer; with ``cluster_id`` they open links only to a broker with that id."""

    access: Access
    client_id: str
    cluster_id: str = field(default="", kw_only=True)

    def bound_to(self, link: LinkBase) -> Self:
        """A dialer for links to the same log directory as ``link``'s."""
        return replace(self, cluster_id=link.hello.cluster_id)

    @property
    def server(self) -> str:
        """The address as text."""
        return str(self.access.address)
