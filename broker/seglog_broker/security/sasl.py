"""SASL (RFC 4422) from the broker's side, for any wire: the client's tokens go in, the broker's come out."""

from typing import Final, NamedTuple

from seglog_protocol.errors import AuthenticationError

OTHER_NAME: Final = "Authentication failed: Client requested an authorization id that is different from username"
"""Kafka's words to a client that asks to act as another user."""


class Identity(NamedTuple):
    """Who a client has proven to be."""

    principal: str
    """As Kafka names it: ``User:alice``."""
    expires_at_ms: int | None = None
    """When the proof ends, in milliseconds since 1970, as that of a token does; None if it does not."""


class Exchange:
    """One exchange. ``identity`` is set once it is complete; a failed exchange cannot be continued."""

    mechanism: str
    claimed: str = ""
    """The name that the client gives itself, for the log; empty while it has given none."""
    identity: Identity | None = None

    async def respond(self, token: bytes) -> bytes:
        """The broker's answer to the client's next token.

        Raises AuthenticationError, which never says what was wrong; its ``__cause__`` does, for the log. Raises
        OutOfResourcesError, which is retriable, when too many clients wait to be authenticated: nothing was checked.
        """
        raise NotImplementedError


class Refusal(Exception):  # noqa: N818 - the cause of an error
    """Why an exchange fails, for the log: no part of a token, password or key."""


def refused(mechanism: str, reason: str, told: str | None = None) -> AuthenticationError:
    """The error of a failed exchange: alike for whatever reason, which its cause has.

    ``told`` is its message where the client's own tokens contradict each other; the others are Kafka's, too. To be
    raised outside of ``except``: the error that was caught may hold a part of the token.
    """
    usual = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    error = AuthenticationError(told or usual)
    error.__cause__ = Refusal(reason)
    return error
