"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the client proves that it knows a password without sending it.

There is no channel binding: Kafka's clients have none, and say so. A client that asks for it is refused; one that would
have it, and takes the broker for one that has not, is right.
"""

import re
from base64 import b64encode
from typing import Final

from scramp.core import Gs2Header, ScramException, ScramMechanism, ServerError

from seglog_broker.security.credentials import Decoys, prepared
from seglog_broker.security.sasl import OTHER_NAME, Exchange, Identity, refused
from seglog_broker.storage.directory.accounts import AccountStore, Credential, why_impossible_name

TOKEN_BYTES_MAX: Final = 4_096
"""Most bytes of a message: a name, a nonce and a proof are far fewer, and preparing a name takes time for each."""

_WRONG_PROOF: Final = "the password is wrong"
_ANY_NAME: Final = "name"
_SALT_BYTES_MIN: Final = 12
"""Of those that scramp takes; Kafka has accounts with shorter ones."""

_WRONG_ESCAPE: Final = re.compile("=(?!2C|3D)")


class ScramExchange(Exchange):
    """Two tokens of the client: who it is, and the proof."""

    def __init__(self, mechanism: str, accounts: AccountStore, decoys: Decoys) -> None:
        self.mechanism = mechanism
        self._accounts = accounts
        self._decoys = decoys
        self._credential: Credential | None = None
        self._is_decoy = False
        self._server = ScramMechanism(mechanism).make_server(self._look_up)
        self._steps = 0
        self._told: str | None = None

    async def respond(self, token: bytes) -> bytes:
        """See Exchange."""
        self._steps += 1
        reason = None
        try:
            if self._steps == 1:
                return self._first(token)
            if self._steps == 2:
                return self._final(token)
            reason = "the exchange has ended"
        except ScramException as error:
            # its text is scramp's own; that of the error before it may have a part of the token
            reason = _WRONG_PROOF if error.server_error is ServerError.INVALID_PROOF else str(error)
            reason = "the user does not exist" if self._credential is not None and self._is_decoy else reason
        except UnicodeDecodeError:
            reason = "it is not UTF-8"
        self._steps = 2
        raise refused(self.mechanism, reason, self._told)

    def _first(self, token: bytes) -> bytes:
        flag, acting_as, bare = _parts(_text(token))
        first, _, rest = bare.partition(",")
        if first.startswith("n=") and len(first) > len("n="):
            self.claimed = _unescaped(first.removeprefix("n="))
        if acting_as and _unescaped(acting_as.removeprefix("a=")) != self.claimed:
            self._told = OTHER_NAME
            raise ScramException("it asks to act as another user")
        # scramp would prepare the name, which Kafka's clients do not: it gets another one, and the message as it came
        self._server.set_client_first(f"{flag},,n={_ANY_NAME},{rest}" if self.claimed else f"{flag},,{bare}")
        self._server.client_first_bare = bare
        if acting_as:
            self._server.gs2_header = _NamedHeader(flag, acting_as)
        assert self._credential is not None
        self._server.salt = b64encode(self._credential.salt).decode()
        answer: str = self._server.get_server_first()
        return answer.encode()

    def _final(self, token: bytes) -> bytes:
        self._server.set_client_final(_text(token))
        answer: str = self._server.get_server_final()
        if self._is_decoy or self._accounts.credential(self.claimed, self.mechanism) is not self._credential:
            raise ScramException("the account was changed or deleted meanwhile")
        self.identity = Identity(f"User:{self.claimed}")
        return answer.encode()

    def _look_up(self, _: str) -> tuple[bytes, bytes, bytes, int]:
        """The credential of the user as the client writes it, as Kafka does; else of the name that SASLprep makes."""
        other = prepared(self.claimed)  # always, as the decoy: both take time
        found = self._accounts.credential(self.claimed, self.mechanism)
        if found is None:
            found, self.claimed = self._accounts.credential(other, self.mechanism), other
        decoy = self._decoys.for_scram(self.claimed, self.mechanism)
        self._is_decoy = found is None
        self._credential = found = found or decoy
        salt = found.salt.ljust(_SALT_BYTES_MIN, b"\0")  # not what the client is told
        return salt, found.stored_key, found.server_key, found.iterations


class _NamedHeader(Gs2Header):  # type: ignore[misc]  # scramp has no types
    """The header of a client that names itself twice, which scramp leaves to its user."""

    def __init__(self, flag: str, name: str) -> None:
        super().__init__(flag, None)
        self._name = name

    def __str__(self) -> str:
        return f"{self.gs2_char},{self._name},"


def _text(token: bytes) -> str:
    if len(token) > TOKEN_BYTES_MAX:
        raise ScramException(f"it has more than {TOKEN_BYTES_MAX} bytes")
    return token.decode()


def _parts(message: str) -> tuple[str, str, str]:
    """Flag, ``a=...`` and the rest of the client's first message."""
    parts = message.split(",", 2)
    if len(parts) != 3 or parts[1][:2] not in {"", "a="}:
        raise ScramException("its first message is malformed")
    return parts[0], parts[1], parts[2]


def _unescaped(name: str) -> str:
    """A name without its escapes. Raises ScramException for one that no account can have."""
    if _WRONG_ESCAPE.search(name):
        raise ScramException("an = in its name must be followed by 2C or 3D")
    found = name.replace("=2C", ",").replace("=3D", "=")
    problem = why_impossible_name(found)
    if problem is not None:
        raise ScramException(f"no account can have the name: {problem}")
    return found
