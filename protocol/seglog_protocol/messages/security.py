"""Who a client is."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from seglog_protocol.messages.base import Int31, Message, Request, default

TOKEN_BYTES_MAX: Final = 48 * 1024
"""Most bytes of one step of an exchange: it fits into a frame before hello."""


class AuthenticateRequest(Request):
    """One step of an exchange of SASL (RFC 4422): the client's ``token`` for ``mechanism``.

    It comes before hello where the listener wants it, and again before the session ends.
    """

    api: ClassVar[str] = "authenticate"
    mechanism: Annotated[str, Meta(max_length=64)]
    token: Annotated[bytes, Meta(max_length=TOKEN_BYTES_MAX)]

    def __repr__(self) -> str:
        """Without the token, which may be a password."""
        return f"AuthenticateRequest(mechanism={self.mechanism!r}, token=<{len(self.token)} bytes>)"


class AuthenticateReply(Message):
    """The broker's ``token``. With ``is_done`` the client is ``principal``, for ``session_ms`` (None: for ever)."""

    token: bytes
    is_done: bool = default(False)
    principal: str = default("")
    session_ms: Int31 | None = None
