"""PLAIN (RFC 4616): the client sends its password, which is checked against its SCRAM credential."""

from typing import Final

from seglog_broker.runtime.offload import Offload
from seglog_broker.security.credentials import is_one_of, prepared
from seglog_broker.security.decoys import Decoys
from seglog_broker.security.sasl import OTHER_NAME, Exchange, Identity, refused
from seglog_broker.storage.directory.accounts import NAME_CHARACTERS_MAX, AccountStore, for_password
from seglog_protocol.scram import PASSWORD_BYTES_MAX

_INVALID: Final = "Authentication failed: Invalid username or password"
_MALFORMED: Final = "Invalid SASL/PLAIN response: expected 3 tokens"
"""Kafka's words."""

_TOKEN_BYTES_MAX: Final = PASSWORD_BYTES_MAX + 8 * NAME_CHARACTERS_MAX + 2  # two names of four bytes a character


class PlainExchange(Exchange):
    """One token of the client: whom it acts as, who it is, its password."""

    mechanism = "PLAIN"

    def __init__(self, accounts: AccountStore, decoys: Decoys, offload: Offload) -> None:
        self._accounts = accounts
        self._decoys = decoys
        self._offload = offload
        self._is_begun = False
        self._told = _INVALID

    async def respond(self, token: bytes) -> bytes:
        """See Exchange."""
        if self._is_begun:
            raise refused(self.mechanism, "the exchange has ended")
        self._is_begun = True
        reason = await self._check(token)
        if reason is not None:
            raise refused(self.mechanism, reason, self._told)
        return b""

    async def _check(self, token: bytes) -> str | None:
        """Why the client is not who it claims to be, None if it is: then ``identity`` is set."""
        if len(token) > _TOKEN_BYTES_MAX:
            return "its token is too long"
        try:
            acting_as, name, password = token.decode().split("\0")
        except ValueError:  # no UTF-8 among them
            self._told = _MALFORMED
            return "its token is not two names and a password"
        if not name or not password:
            self._told = f"Authentication failed: {'password' if name else 'username'} not specified"
            return "it gives no name or no password"
        if len(name) > NAME_CHARACTERS_MAX or len(password.encode()) > PASSWORD_BYTES_MAX:
            return "its name or its password is too long"
        self.claimed = name
        if acting_as not in {"", name}:
            self._told = OTHER_NAME
            return "it asks to act as another user"
        other = prepared(name)  # always: it takes time
        if not self._accounts.has(name):
            name = self.claimed = other
        account = self._accounts.account(name)
        decoy = self._decoys.for_password(name)  # always, as above
        credential = for_password(account) if account else decoy
        # As it is, as Kafka's clients salt it, and as others would have prepared it
        passwords = dict.fromkeys((password.encode(), prepared(password).encode()))
        is_right = await self._offload.derivation(is_one_of, credential, tuple(passwords))
        if account is None:
            return "the user does not exist"
        if not is_right:
            return "the password is wrong"
        if self._accounts.account(name) is not account:
            return "the account was changed or deleted meanwhile"
        self.identity = Identity(f"User:{name}")
        return None
