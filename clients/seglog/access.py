"""The connections to one broker: how they are secured, and its outage. Shared by all links of a client, of any face."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

from seglog.core.authentication import Authentication
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


class Greeted(Protocol):
    """A link whose server has said hello; ``tls`` is established, or None without TLS."""

    hello: HelloReply
    tls: "TlsSession | None"


@dataclass(eq=False)
class DialerBase:
    """The common part of both kinds of Dialer; with ``cluster_id`` they open links only to a broker with that id."""

    access: Access
    client_id: str
    cluster_id: str = field(default="", kw_only=True)

    def bound_to(self, link: Greeted) -> Self:
        """A dialer for links to the same log directory as ``link``'s."""
        return replace(self, cluster_id=link.hello.cluster_id)

    @property
    def server(self) -> str:
        """The address as text."""
        return str(self.access.address)
