"""Whether tokens of OAUTHBEARER can be checked as the configuration says."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from seglog_broker.config.listeners import enables_tokens
from seglog_protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    from seglog_broker.config.broker_config import BrokerConfig

_URL = "sasl.oauthbearer.jwks.endpoint.url"


def check_tokens(config: "BrokerConfig") -> None:
    """Raise InvalidConfigError where OAUTHBEARER is offered, and no token could be told from one that anyone made."""
    if not enables_tokens(config) or config.seglog_sasl_oauthbearer_unsecured:
        return
    url = config.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        raise InvalidConfigError(
            f"OAUTHBEARER in sasl.enabled.mechanisms needs {_URL}, where the keys are that tokens are signed with: "
            "https://... or file:///....",
            key=_URL,
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc:
        raise InvalidConfigError(f"{_URL} has a password in it, which would be in logs: keys are public.", key=_URL)
    if not (parts.scheme == "https" and parts.hostname) and not (parts.scheme == "file" and not parts.netloc):
        raise InvalidConfigError(
            f"{_URL} = {url[:200]} cannot be used: it must be https://... or file:///..., because who can change the "
            "keys on their way can make tokens.",
            key=_URL,
        )
    for what, expected, is_any_taken in (
        ("audience", config.sasl_oauthbearer_expected_audience, config.sasl_oauthbearer_allow_unverified_audience),
        ("issuer", config.sasl_oauthbearer_expected_issuer, config.sasl_oauthbearer_allow_unverified_issuer),
    ):
        if not expected and not is_any_taken:
            key = f"sasl.oauthbearer.expected.{what}"
            raise InvalidConfigError(
                f"OAUTHBEARER needs {key}, as in Kafka 4.4: a token of any {what} would be taken. "
                f"sasl.oauthbearer.allow.unverified.{what}=true takes it.",
                key=key,
            )
