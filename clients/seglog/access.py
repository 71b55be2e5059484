"""The connections to one broker: how they are secured, and its outage. Shared by all links of a client, of any face."""

from typing import TYPE_CHECKING

from seglog.core.authentication import Authentication
from seglog.core.retries import Outage
from seglog.core.security import Target

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
