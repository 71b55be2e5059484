"""Who a client is, and the accounts that there are."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from seglog_protocol.errors import SeglogError
from seglog_protocol.messages.base import Int31, Items, Message, Request, RequestPart, default

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


class UsersRequest(Request):
    """Describe the accounts called ``names``, of which those behind ``after`` in their order; None for all."""

    api: ClassVar[str] = "users"
    names: Items[str] | None = None
    after: str = default("")


class UserCredential(Message):
    """A SCRAM credential, without what could be used to log in."""

    mechanism: str
    iterations: Int31


class UserDescription(Message):
    """One account."""

    name: str
    credentials: list[UserCredential]


class UsersReply(Message):
    """Accounts in the order of their names. ``unknown`` has an error for each of ``names`` that does not exist.

    With ``has_more`` there are others behind the last name in it: ask for those after it.
    """

    users: list[UserDescription]
    unknown: list[SeglogError] = default([])
    has_more: bool = default(False)


class UserDeletion(RequestPart):
    """A credential to delete; without ``mechanism``, the account."""

    name: str
    mechanism: str | None = None


class UserUpsertion(RequestPart):
    """A SCRAM credential to set: ``salted_password`` is Hi(password, salt, iterations) of RFC 5802."""

    name: str
    mechanism: str
    iterations: Int31
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        """Without what could be used to log in."""
        return f"UserUpsertion(name={self.name!r}, mechanism={self.mechanism!r}, iterations={self.iterations})"


class AlterUsersRequest(Request):
    """Make, change and delete accounts; those that are named twice are refused."""

    api: ClassVar[str] = "alter_users"
    deletions: Items[UserDeletion] = default([])
    upsertions: Items[UserUpsertion] = default([])


class AlteredUser(Message):
    """An account that was changed, or why it was not."""

    user: str
    error: SeglogError | None = None


class AlterUsersReply(Message):
    """Results in the order of first mention."""

    results: list[AlteredUser]
