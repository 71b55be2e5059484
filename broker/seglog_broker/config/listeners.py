"""Listeners: those that are served, what each speaks and advertises, and whether they can be served at all.

Each of Kafka's has a name, which ties it to its advertised address and, by ``listener.security.protocol.map``, to what
is spoken there. One that is for controllers (``controller.listener.names``) is accepted and not opened: there are none.
"""

import re
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from seglog_broker.config.values import ALL_ADDRESSES, PROTOCOLS, Listener, join_address, split_address, split_listener
from seglog_protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    from seglog_broker.config.broker_config import BrokerConfig


HTTP_PROTOCOLS: Final = ("PLAINTEXT", "SSL")
"""What the listener for HTTP may speak: who may see what is a matter of its requests."""


class ServedListener(NamedTuple):
    """A listener that is opened; ``name`` is in capitals, and empty where a key of its own stands for the listener."""

    name: str
    host: str
    port: int
    protocol: str
    """One of PROTOCOLS."""
    key: str = "listeners"
    """The configuration key that it is of."""

    @property
    def has_tls(self) -> bool:
        """Whether what is sent is encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients log in to accounts."""
        return self.protocol.startswith("SASL")

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return join_address(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def title(self) -> str:
        """How sentences name it, and its configuration key."""
        return f"{self.name} of {self.key}" if self.name else self.key


def is_loopback(host: str) -> bool:
    """Whether a host, a name or an address, is this machine alone."""
    if host.lower() in {"localhost", "ip6-localhost", "ip6-loopback", "::1"}:
        return True
    return re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def served_listeners(config: "BrokerConfig") -> list[ServedListener]:
    """The listeners for Kafka's clients that are opened, in their order. Raises InvalidConfigError."""
    controllers = {name.upper() for name in config.controller_listener_names}
    protocols = {name: name for name in PROTOCOLS}
    for entry in config.listener_security_protocol_map:
        name, _, protocol = entry.partition(":")
        protocols[name] = protocol
    served = []
    for listener in map(split_listener, config.listeners):
        if listener.name in controllers:
            continue
        if listener.name not in protocols:
            raise InvalidConfigError(
                f"listeners = {','.join(config.listeners)} cannot be used: listener.security.protocol.map does not say "
                f"what {listener.name} speaks: add {listener.name}:PLAINTEXT to it.",
                key="listeners",
            )
        served.append(ServedListener(*listener, protocols[listener.name]))
    return served


def native_listener(config: "BrokerConfig") -> ServedListener:
    """The listener of the native protocol."""
    return _single_listener("seglog.listen", config.seglog_listen)


def http_listener(config: "BrokerConfig") -> ServedListener | None:
    """The listener for health and metrics; None without one."""
    return _single_listener("seglog.http.listen", config.seglog_http_listen) if config.seglog_http_listen else None


def _single_listener(key: str, value: str) -> ServedListener:
    protocol, separator, address = value.rpartition("://")
    return ServedListener("", *split_address(address), protocol.upper() if separator else PROTOCOLS[0], key)


def all_listeners(config: "BrokerConfig") -> list[ServedListener]:
    """The native listener and those of Kafka's clients: those of records."""
    return [native_listener(config), *served_listeners(config)]


def listeners_with_tls(config: "BrokerConfig") -> list[ServedListener]:
    """Those that speak TLS, that for HTTP included."""
    http = http_listener(config)
    return [listener for listener in (*all_listeners(config), http) if listener is not None and listener.has_tls]


def has_tls(config: "BrokerConfig") -> bool:
    """Whether any listener speaks TLS."""
    return bool(listeners_with_tls(config))


def listener_names(config: "BrokerConfig") -> set[str]:
    """The names of Kafka's listeners, in capitals; those for controllers, which are not opened, included."""
    return {listener.name for listener in map(split_listener, config.listeners)}


def authenticates(listener: ServedListener, config: "BrokerConfig") -> bool:
    """Whether every client of a listener has to prove who it is: by an account, or by a certificate."""
    return listener.has_sasl or asks_for_certificates(listener, config) == "required"


def asks_for_certificates(listener: ServedListener, config: "BrokerConfig") -> str:
    """Whether clients of a listener show certificates: "none", "requested" or "required"."""
    return config.of_listener(listener.name).ssl_client_auth if listener.has_tls else "none"


def is_open_to_anyone(listener: ServedListener, config: "BrokerConfig") -> bool:
    """Whether whoever reaches a listener is let in: nobody is asked, or a token that anyone can make is taken."""
    return not authenticates(listener, config) or takes_any_token(listener, config)


def takes_any_token(listener: ServedListener, config: "BrokerConfig") -> bool:
    """Whether a token without a signature makes a client of a listener any account."""
    return config.seglog_sasl_oauthbearer_unsecured and "OAUTHBEARER" in offered_mechanisms(listener, config)


def enables_tokens(config: "BrokerConfig") -> bool:
    """Whether OAUTHBEARER is a mechanism of any listener."""
    own = [config.of_listener(listener.name) for listener in all_listeners(config)]
    return any("OAUTHBEARER" in each.sasl_enabled_mechanisms for each in (config, *own))


def has_authentication(config: "BrokerConfig") -> bool:
    """Whether any listener authenticates its clients; then whoever comes without is not trusted to administer."""
    return any(authenticates(listener, config) for listener in all_listeners(config))


def offered_mechanisms(listener: ServedListener, config: "BrokerConfig") -> tuple[str, ...]:
    """The mechanisms of SASL by which clients of a listener may log in: PLAIN only where the password is not in clear.

    Empty for one without SASL.
    """
    is_private = listener.has_tls or listener.is_loopback
    return mechanisms(config.of_listener(listener.name), is_private=is_private) if listener.has_sasl else ()


def mechanisms(config: "BrokerConfig", *, is_private: bool) -> tuple[str, ...]:
    """The mechanisms of SASL that are enabled. ``is_private``: nobody can listen, by TLS or on a loopback address."""
    may_be_plain = is_private or config.seglog_sasl_plain_cleartext
    return tuple(name for name in config.sasl_enabled_mechanisms if name != "PLAIN" or may_be_plain)


def advertised_listener(config: "BrokerConfig", place: int) -> Listener | None:
    """What the listener at ``place`` of ``served_listeners`` advertises; None for the address a client has reached.

    Of listeners with the same name each advertises the address at its own place among those of that name, or the last.
    """
    served = served_listeners(config)
    name = served[place].name
    addresses = [listener for listener in map(split_listener, config.advertised_listeners) if listener.name == name]
    before = sum(listener.name == name for listener in served[:place])
    return addresses[min(before, len(addresses) - 1)] if addresses else None


# --- Checks -----------------------------------------------------------------------------------------------------------


def check_listeners(config: "BrokerConfig") -> None:
    """Raise InvalidConfigError for what the start would refuse.

    That is a listener open to everyone, one for whose protocol something is missing, two on one port, and an advertised
    one that is none.
    """
    listeners = all_listeners(config)
    for listener in listeners:
        _check_security(listener, config)
    http = http_listener(config)
    if http is not None:
        if http.protocol not in HTTP_PROTOCOLS:
            raise InvalidConfigError(
                f"{_written(http, config)} cannot be used: HTTP has no {http.protocol}, but PLAINTEXT and SSL; "
                "seglog.http.token.file has the token that its clients show.",
                key=http.key,
            )
        _check_certificate(http, config)
        listeners.append(http)
    _check_ports(config, listeners)
    known = listener_names(config)
    for setting in config.listener_settings:
        if setting.listener not in known:
            raise InvalidConfigError(
                f"{setting.name} ({setting.origin}) cannot be used: {_no_listener(setting.listener, known)}",
                key=setting.name,
            )
    for address in config.advertised_listeners:
        if config.listeners and split_listener(address).name not in known:
            raise InvalidConfigError(
                f"advertised.listeners = {','.join(config.advertised_listeners)} cannot be used: "
                f"{_no_listener(split_listener(address).name, known)}",
                key="advertised.listeners",
            )


def _no_listener(name: str, known: set[str]) -> str:
    there = f"there {'are' if len(known) > 1 else 'is'} {', '.join(sorted(known)) or 'none'}"
    return f"no listener is named {name}; in listeners {there}."


def _written(listener: ServedListener, config: "BrokerConfig") -> str:
    value = {"seglog.listen": config.seglog_listen, "seglog.http.listen": config.seglog_http_listen}.get(listener.key)
    return f"{listener.key} = {','.join(config.listeners) if value is None else value}"


def _check_certificate(listener: ServedListener, config: "BrokerConfig") -> None:
    own = config.of_listener(listener.name)
    if listener.has_tls and not (own.ssl_keystore_location or own.ssl_keystore_key):
        raise InvalidConfigError(
            f"{_written(listener, config)} cannot be used: {listener.name or 'it'} is to speak {listener.protocol}, "
            "and there is no certificate for it. Set ssl.keystore.location to a PEM file with key and chain; seglogd "
            "certificates --to DIR makes one for a trial.",
            key=listener.key,
        )


def _check_security(listener: ServedListener, config: "BrokerConfig") -> None:
    """Raise InvalidConfigError for a listener that would be open to everyone, or to nobody."""
    written = _written(listener, config)
    what = listener.name or "it"
    _check_certificate(listener, config)
    if listener.has_sasl and not offered_mechanisms(listener, config):
        raise InvalidConfigError(
            f"{written} cannot be used: {what} is to speak {listener.protocol}, and sasl.enabled.mechanisms has none "
            "for it; PLAIN is offered with SASL_SSL and on loopback addresses alone.",
            key="sasl.enabled.mechanisms",
        )
    if listener.is_loopback or config.seglog_open_to_everyone:
        return
    if takes_any_token(listener, config):
        raise InvalidConfigError(
            f"{written} cannot be used: whoever reaches {listener.address} could log in as any account, as "
            "seglog.sasl.oauthbearer.unsecured=true takes tokens that anyone can make, and it is for tests. Take it or "
            "OAUTHBEARER (sasl.enabled.mechanisms) away, listen on a loopback address, or set "
            "seglog.open.to.everyone=true where the network lets in nobody else.",
            key="seglog.sasl.oauthbearer.unsecured",
        )
    if not authenticates(listener, config):
        certificates = " or ssl.client.auth=required (certificates)" if listener.has_tls else ""
        raise InvalidConfigError(
            f"{written} cannot be used: whoever reaches {listener.address} could read, write and delete everything, as "
            f"{listener.protocol} asks nobody who they are. Use SASL_SSL (accounts){certificates}, or set "
            "seglog.open.to.everyone=true where the network lets in nobody else.",
            key=listener.key,
        )


def security_warnings(config: "BrokerConfig") -> list[str]:
    """Sentences about listeners that can be used, and leave something open or somebody out."""
    listeners = all_listeners(config)
    warnings = []
    for listener in listeners:
        if listener.protocol == "SASL_PLAINTEXT" and not listener.is_loopback:
            in_clear = "PLAIN" in offered_mechanisms(listener, config)
            warnings.append(
                f"{listener.title} speaks SASL_PLAINTEXT beyond this machine ({listener.address}): what is read and "
                f"written crosses the network in clear{', passwords of PLAIN included' if in_clear else ''}; SASL_SSL "
                "encrypts it."
            )
        if not listener.is_loopback and is_open_to_anyone(listener, config):
            warnings.append(
                f"{listener.title} is open to everyone who reaches {listener.address} (seglog.open.to.everyone=true)."
            )
    if not config.super_users and any(authenticates(listener, config) for listener in listeners):
        warnings.append(
            "super.users is empty, and there is a listener with authentication: nobody can administer topics, "
            "configurations and accounts. Name an account, as in super.users=User:admin."
        )
    http = http_listener(config)
    if http is not None and not http.is_loopback and config.seglog_http_token_file and not http.has_tls:
        warnings.append(
            f"seglog.http.listen = {config.seglog_http_listen} speaks PLAINTEXT beyond this machine: the token of "
            f"seglog.http.token.file, and what it shows, cross the network in clear; SSL://{http.address} encrypts "
            "them."
        )
    if http is not None and not http.is_loopback and not config.seglog_http_token_file:
        certificate = asks_for_certificates(http, config) == "required"
        if config.seglog_open_to_everyone and not certificate:
            warnings.append(
                f"seglog.http.listen shows metrics and problems to everyone who reaches {http.address} "
                "(seglog.open.to.everyone=true)."
            )
        elif not certificate:
            warnings.append(
                f"seglog.http.listen = {config.seglog_http_listen} is reached from other machines, and nothing says "
                "who may see /metrics and /healthz there: they answer 403 until seglog.http.token.file names a file "
                "with a token, or clients show certificates (SSL:// and ssl.client.auth=required). /livez and /readyz "
                "answer anybody."
            )
    if config.seglog_sasl_oauthbearer_unsecured and enables_tokens(config):
        warnings.append(
            "seglog.sasl.oauthbearer.unsecured is true: anyone can make a token for any account. It is for tests."
        )
    return warnings


def _check_ports(config: "BrokerConfig", listeners: list[ServedListener]) -> None:
    for first, second in combinations(listeners, 2):
        if first.port == second.port != 0 and (first.host == second.host or {first.host, second.host} & ALL_ADDRESSES):
            raise InvalidConfigError(
                f"{_written(second, config)} cannot be used: {first.title} and {second.title} have the same port, "
                f"{first.port}; give one of them another.",
                key=second.key,
            )


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
