"""The exchange of SASL (RFC 4422) before hello, and again before a session ends: SCRAM, PLAIN and OAUTHBEARER.

A password goes over the wire by PLAIN alone, and by that only where nobody else can read it. By SCRAM the broker proves
that it knows the account, too.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from seglog.core.connection import Header
from seglog.core.conversations import Conversation, ask
from seglog.core.security import SCRAM_MECHANISMS, Account, Bearer, Mechanism, Secret, Target
from seglog_protocol import errors
from seglog_protocol.frames import decode_map
from seglog_protocol.messages import AuthenticateReply, AuthenticateRequest

if TYPE_CHECKING:
    from scramp import ScramClient

ResultT = TypeVar("ResultT")

RENEWED_AFTER: Final = 0.8
"""The part of a session after which it is renewed, before the next request."""


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ENDED: Final = errors.AuthenticationRequiredError.code.encode()


class Session(NamedTuple):
    """Who the broker takes the client for. ``seconds``: how long; None: as long as the connection lasts."""

    principal: str
    mechanism: str
    seconds: float | None = None


def lasting() -> float:
    """Seconds of a monotonic clock that goes on while the machine sleeps, as the broker's does meanwhile."""
    return time.clock_gettime(_CLOCK)


def check_session(header: Header, server: str) -> None:
    """Raises ConnectionLostError where a reply says that the session has ended: a new connection begins another.

    That happens where a request was on its way when the session should have been renewed.
    """
    if isinstance(header, Mapping) or _ENDED not in bytes(header):
        return
    reply = decode_map(header, "header")
    results = reply.get("partitions")
    for part in [reply, *(results if isinstance(results, list) else [])]:
        error = part.get("error") if isinstance(part, Mapping) else None
        if isinstance(error, Mapping) and error.get("code") == errors.AuthenticationRequiredError.code:
            raise errors.ConnectionLostError(f"the session at {server} has ended", server=server)


class Authentication:
    """How the connections to one broker are authenticated; what the listener takes is asked once."""

    def __init__(self, target: Target) -> None:
        assert target.identity is not None
        self._identity = target.identity
        self._is_private = target.is_private
        self._server = str(target.address)
        self._learned: Mechanism | None = None

    def exchange(self) -> Conversation[Session]:
        """Prove who the client is. Raises AuthenticationError, and ValueError where there is no password to prove."""
        chosen = self._identity.mechanism or self._learned
        if chosen is None:
            chosen = yield from self._choose()
        try:
            session = yield from self._prove(chosen)
        except errors.UnsupportedMechanismError as error:
            self._learned = None
            if not error.mechanisms:
                raise self._unwanted() from None
            raise errors.UnsupportedMechanismError(
                f"{self._server} does not take {chosen} there, but {', '.join(error.mechanisms)}",
                mechanisms=error.mechanisms,
            ) from None
        except errors.AuthenticationRequiredError as error:
            if error.mechanisms:
                raise
            raise self._unwanted() from None
        except errors.AuthenticationError as error:
            who = f"user {self._identity.user!r}" if isinstance(self._identity, Account) else "a token"
            raise errors.AuthenticationError(f"{error.message} ({who}, by {chosen})", **error.facts) from None
        self._learned = chosen
        return session

    def _prove(self, mechanism: Mechanism) -> Conversation[Session]:
        identity = self._identity
        if isinstance(identity, Bearer):
            reply = yield from _bearer(identity)
        elif mechanism == "PLAIN":
            self._check_private()
            reply = yield from _step(
                "PLAIN", b"\0%b\0%b" % (identity.user.encode(), _revealed(identity.password).encode())
            )
        else:
            reply = yield from _scram(mechanism, identity)
        if not reply.is_done:
            raise errors.AuthenticationError(f"{self._server} did not end the exchange")
        return Session(reply.principal, mechanism, None if reply.session_ms is None else reply.session_ms / 1000)

    def _check_private(self) -> None:
        if not self._is_private:
            raise errors.AuthenticationError(
                f"PLAIN would send the password to {self._server} for all to read: connect with TLS (seglogs://), or "
                f"have the listener take SCRAM"
            )

    # --- What the listener takes

    def _choose(self) -> Conversation[Mechanism]:
        """The best mechanism of those that the listener takes, which it names when it is asked for none."""
        offered: Sequence[str] = ()
        try:
            with suppress(errors.UnsupportedApiError):
                yield from _step("", b"")
        except (errors.UnsupportedMechanismError, errors.AuthenticationRequiredError) as error:
            offered = error.mechanisms
        if not offered:
            raise self._unwanted()
        for mechanism in SCRAM_MECHANISMS:
            if mechanism in offered:
                return mechanism
        if "PLAIN" in offered:
            self._check_private()
            return "PLAIN"
        raise errors.AuthenticationError(f"{self._server} takes {', '.join(offered)} there, and no password")

    def _unwanted(self) -> errors.AuthenticationError:
        return errors.AuthenticationError(f"{self._server} asks for no account there: connect without a user")


def _step(mechanism: str, token: bytes) -> Conversation[AuthenticateReply]:
    return (yield from ask(AuthenticateRequest(mechanism, token), AuthenticateReply))[0]


def _bearer(identity: Bearer) -> Conversation[AuthenticateReply]:
    """RFC 7628. A refusal may come as a token, which is answered by a byte before the error itself comes."""
    reply = yield from _step("OAUTHBEARER", b"n,,\x01auth=Bearer %b\x01\x01" % _revealed(identity.token).encode())
    if not reply.is_done:
        reply = yield from _step("OAUTHBEARER", b"\x01")
    return reply


def _scram(mechanism: Mechanism, account: Account) -> Conversation[AuthenticateReply]:
    """RFC 5802, RFC 7677."""
    for what, text in (("name of the user", Secret(account.user)), ("password", account.password)):
        if _is_forbidden(text):
            raise errors.AuthenticationError(
                f"the {what} has characters that SASLprep (RFC 4013) forbids: by SCRAM this client cannot log in"
            )
    client = _checked(lambda: _client(mechanism, account))
    reply = yield from _step(mechanism, client.get_client_first().encode())
    _checked(lambda: client.set_server_first(reply.token.decode()))
    reply = yield from _step(mechanism, _checked(client.get_client_final).encode())
    _checked(lambda: client.set_server_final(reply.token.decode()))
    return reply


def _client(mechanism: Mechanism, account: Account) -> "ScramClient":
    from scramp import ScramClient  # noqa: PLC0415 - takes some milliseconds, which only accounts need

    return ScramClient([mechanism], account.user, _revealed(account.password))


def _is_forbidden(text: Secret) -> bool:
    from scramp.utils import ScramException, saslprep  # noqa: PLC0415 - as above

    revealed = _revealed(text)
    try:
        return not saslprep(revealed)
    except ScramException:
        return True


def _checked(step: Callable[[], ResultT]) -> ResultT:
    """The result of a step. Raises AuthenticationError for what the library raises, whose frames have secrets."""
    from scramp import ScramException  # noqa: PLC0415 - as above

    try:
        return step()
    except ScramException as error:
        wrong = str(error)
    except UnicodeError:
        wrong = "a message is not text"
    raise errors.AuthenticationError(f"the exchange with the broker cannot go on: {wrong}")


def _revealed(secret: Secret) -> str:
    try:
        return secret.reveal()
    except Exception as error:  # a function of the program's own may raise anything
        raise errors.AuthenticationError(f"the password or token cannot be had: {error}") from error
