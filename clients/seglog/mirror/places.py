"""Where the two sides of a mirror are: what is typed, as settings of librdkafka."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.dialing import parse_address
from seglog.core.security import Account, Target, Tls

if TYPE_CHECKING:
    from seglog_protocol.messages import DescribeBrokerReply, DescribedListener

_SCHEMES: Final = {"kafka": "PLAINTEXT", "kafkas": "SSL"}
_FORMS: Final = "write kafka://HOST:PORT, or kafkas://HOST:PORT for TLS; several brokers with commas between them"
_PORT: Final = 9092
_EVERY_INTERFACE: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - read, not listened on

OWN_SETTINGS: Final = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "partition.assignment.strategy",
        "transactional.id",
    }
)
"""What decides whether each record arrives once: not for a file to set."""


class Place(NamedTuple):
    """One side: its name for people, and librdkafka's settings for reaching it, secrets among them."""

    name: str
    settings: "Settings"


class Settings(dict[str, str]):
    """Settings of librdkafka, which are shown to no ``repr``: passwords are among them."""

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self))})"


def kafka_place(url: str, properties: Mapping[str, str]) -> Place:
    """The side at ``kafka://HOST:PORT,…``. Raises ValueError with a sentence for what is none."""
    scheme, separator, rest = url.strip().partition("://")
    if "@" in url:  # what is in front may be a password
        raise ValueError("an account does not belong in the address, which others can see: give --kafka-config FILE")
    if not separator or scheme.lower() not in _SCHEMES:
        raise ValueError(f"{url!r} is no address of a Kafka; {_FORMS}")
    hosts = rest.removesuffix("/").split(",")
    try:
        parsed = [(host, parse_address(host)) for host in hosts]
    except ValueError as error:
        raise ValueError(f"{url!r} is no address of a Kafka: {error}") from error
    hosts = [str(at if host.endswith(f":{at.port}") else at._replace(port=_PORT)) for host, at in parsed]
    tls = _SCHEMES[scheme.lower()] == "SSL"
    has_account = any(name.startswith("sasl.") for name in properties)
    protocol = ("SASL_SSL" if tls else "SASL_PLAINTEXT") if has_account else _SCHEMES[scheme.lower()]
    settings = {"security.protocol": protocol, **properties, "bootstrap.servers": ",".join(hosts)}
    return Place(f"{scheme.lower()}://{','.join(hosts)}", Settings(settings))


def properties_in(path: str) -> Settings:
    """``name=value`` lines of librdkafka's settings, ``#`` before comments, as kcat reads them with -F.

    Raises OSError, and ValueError with a sentence for a line that is none, or a setting that is the mirror's own.
    """
    found = Settings()
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        name, separator, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not separator:  # the line may be a password
            raise ValueError(f"{path}, line {number}: a setting is written NAME=VALUE")
        if name.strip() in OWN_SETTINGS:
            raise ValueError(f"{path}, line {number}: {name.strip()} is set by the mirror itself; leave it out")
        found[name.strip()] = value.strip()
    return found


def broker_place(target: Target, described: "DescribeBrokerReply") -> Place:
    """The side that is a seglogd, by its own listener's ``target`` and what it told there about its others.

    Raises ValueError with a sentence where it has no listener for Kafka's clients that the account can use.
    """
    wanted = ("SASL_SSL", "SASL_PLAINTEXT") if target.identity is not None else ("PLAINTEXT", "SSL")
    listeners = [each for each in described.listeners if each.name and each.name != "http"]
    by_protocol = {each.protocol.upper(): each for each in reversed(listeners)}
    found = next((by_protocol[name] for name in (*wanted, *by_protocol) if name in by_protocol), None)
    if found is None:
        raise ValueError(
            "the broker has no listener for Kafka's clients, which a mirror goes through: start seglogd with "
            "listeners=PLAINTEXT://127.0.0.1:9092, see docs/KAFKA.md"
        )
    host, _, port = (found.advertised or found.address).rpartition(":")
    if found.advertised is None or host in _EVERY_INTERFACE:
        host = target.address.host
    address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    return Place(address, settings_for(found, address, target))


def settings_for(listener: "DescribedListener", address: str, target: Target) -> Settings:
    """The settings for ``address``, by the protocol of a listener and the files and the account of ``target``.

    Raises ValueError where an account is missing.
    """
    protocol = listener.protocol.upper()
    settings: dict[str, Any] = {"bootstrap.servers": address, "security.protocol": protocol}
    if "SSL" in protocol and isinstance(target.tls, Tls):
        tls = target.tls
        files = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key or tls.certificate}
        settings |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
        if not tls.check_hostname:
            settings["ssl.endpoint.identification.algorithm"] = "none"
    if protocol.startswith("SASL"):
        if not isinstance(target.identity, Account):
            raise ValueError(f"the listener {listener.name} for Kafka's clients wants an account: give --user")
        settings |= {
            "sasl.mechanism": target.identity.mechanism or "SCRAM-SHA-512",
            "sasl.username": target.identity.user,
            "sasl.password": target.identity.password.reveal(),
        }
    return Settings(settings)
