"""Authenticates clients of any wire: their mechanisms, an exchange for each client, and that of PLAIN (RFC 4616).

Out of scope are GSSAPI (Kerberos) and delegation tokens: a client that asks for either is refused.
"""

from typing import TYPE_CHECKING, Final

from seglog_broker.config import BrokerConfig
from seglog_broker.config.listeners import enables_tokens, mechanisms
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.security.credentials import Decoys, is_one_of, prepared
from seglog_broker.security.sasl import OTHER_NAME, Exchange, Identity, refused
from seglog_broker.storage.directory.accounts import NAME_CHARACTERS_MAX, AccountStore, for_password
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.errors import UnsupportedMechanismError
from seglog_protocol.scram import PASSWORD_BYTES_MAX

if TYPE_CHECKING:
    from seglog_broker.security.oauthbearer import TokenValidator


class Authenticator:
    """Makes exchanges, by the accounts and the configuration in force."""

    def __init__(self, accounts: AccountStore, live_config: LiveConfig, clock: Clock, offload: Offload) -> None:
        self._accounts = accounts
        self._live_config = live_config
        self._offload = offload
        self._decoys = Decoys(accounts)
        config = live_config.current
        self._validator = _validator_for(config, clock, offload) if enables_tokens(config) else None

    def mechanisms(self, listener: str = "", *, is_private: bool) -> tuple[str, ...]:
        """The mechanisms that a client of a listener may use: see ``config.listeners.mechanisms``."""
        return mechanisms(self._live_config.current.of_listener(listener), is_private=is_private)

    def load_libraries(self) -> None:
        """Import what exchanges use: at the first login it would hold the loop for a tenth of a second."""
        import seglog_broker.security.scram  # noqa: F401, PLC0415 - it is used by ``begin``

    def begin(self, mechanism: str, listener: str = "", *, is_private: bool) -> Exchange:
        """A new exchange on a listener, by its name in capitals; empty for those that are not Kafka's.

        Raises UnsupportedMechanismError, which lists the mechanisms that there are.
        """
        offered = self.mechanisms(listener, is_private=is_private)
        if mechanism not in offered:
            listed = ", ".join(offered) or "none"
            message = f"the mechanism {mechanism[:64]!r} is not offered here, but {listed}"
            enabled = self._live_config.current.of_listener(listener).sasl_enabled_mechanisms
            if mechanism == "PLAIN" and mechanism in enabled:
                message += ": PLAIN needs TLS, because it sends the password as it is"
            raise UnsupportedMechanismError(message, mechanisms=list(offered))
        if mechanism == "PLAIN":
            return PlainExchange(self._accounts, self._decoys, self._offload)
        if self._validator is not None and mechanism == "OAUTHBEARER":
            return self._validator.begin()
        from seglog_broker.security.scram import ScramExchange  # noqa: PLC0415 - scramp brings certificates along

        return ScramExchange(mechanism, self._accounts, self._decoys)


def _validator_for(config: BrokerConfig, clock: Clock, offload: Offload) -> "TokenValidator":
    from seglog_broker.security.oauthbearer import Jwks, TokenRules, TokenValidator  # noqa: PLC0415 - as above

    rules = TokenRules(
        config.sasl_oauthbearer_expected_audience,
        config.sasl_oauthbearer_expected_issuer,
        config.sasl_oauthbearer_sub_claim_name,
        config.sasl_oauthbearer_scope_claim_name,
        config.sasl_oauthbearer_clock_skew_seconds,
    )
    if config.seglog_sasl_oauthbearer_unsecured:
        return TokenValidator(rules, None, clock)
    url = config.sasl_oauthbearer_jwks_endpoint_url
    return TokenValidator(rules, Jwks(url, config.sasl_oauthbearer_jwks_endpoint_refresh_ms, clock, offload), clock)


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
