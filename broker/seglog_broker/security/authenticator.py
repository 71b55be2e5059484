"""Authenticates clients of any wire: which mechanisms there are, and an exchange for each client.

Out of scope are GSSAPI (Kerberos) and delegation tokens: a client that asks for either is refused.
"""

from typing import TYPE_CHECKING

from seglog_broker.config import BrokerConfig
from seglog_broker.config.listeners import enables_tokens, mechanisms
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.security.decoys import Decoys
from seglog_broker.security.plain import PlainExchange
from seglog_broker.security.sasl import Exchange
from seglog_broker.storage.directory.accounts import AccountStore
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.errors import UnsupportedMechanismError

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
            if (
                mechanism == "PLAIN"
                and mechanism in self._live_config.current.of_listener(listener).sasl_enabled_mechanisms
            ):
                message += ": PLAIN needs TLS, because it sends the password as it is"
            raise UnsupportedMechanismError(message, mechanisms=list(offered))
        if mechanism == "PLAIN":
            return PlainExchange(self._accounts, self._decoys, self._offload)
        if self._validator is not None and mechanism == "OAUTHBEARER":
            return self._validator.begin()
        from seglog_broker.security.scram import ScramExchange  # noqa: PLC0415 - scramp brings certificates along

        return ScramExchange(mechanism, self._accounts, self._decoys)


def _validator_for(config: BrokerConfig, clock: Clock, offload: Offload) -> "TokenValidator":
    from seglog_broker.security.jwks import Jwks  # noqa: PLC0415 - megabytes of libraries, where there are tokens
    from seglog_broker.security.oauthbearer import TokenRules, TokenValidator  # noqa: PLC0415 - as above

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
