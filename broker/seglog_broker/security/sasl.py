"""SASL (RFC 4422) from the broker's side, for any wire: the client's tokens go in, the broker's come out."""

from typing import NamedTuple


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

        Raises AuthenticationError, which never says what was wrong; its ``__cause__`` does, for the log.
        """
        raise NotImplementedError
