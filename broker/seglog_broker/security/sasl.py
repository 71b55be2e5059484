"""SASL (RFC 4422) from the broker's side, for any wire: the client's tokens go in, the broker's come out."""

from typing import NamedTuple

from seglog_protocol.errors import AuthenticationError


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


def refused(mechanism: str, reason: str) -> AuthenticationError:
    """The error of a failed exchange: alike for whatever reason, which its cause has.

    To be raised outside of ``except``: the error that was caught may hold a part of the token.
    """
    error = AuthenticationError(
        f"authentication by {mechanism} failed: the user or what proves it is not right; check both, and try again"
    )
    error.__cause__ = Refusal(reason)
    return error
