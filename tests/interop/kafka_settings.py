"""How a real Kafka, and a daemon, are told to serve listeners with TLS and accounts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop.sasl_client import MECHANISMS
from tests.interop.sasl_conversation import USERS

MAPPING = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
"""Of the subject of a certificate to a name: its CN."""


def kafka_settings(
    ports: Mapping[str, int],
    controller: int,
    protocols: Mapping[str, str],
    *,
    server: Path | None = None,
    authority: Path | None = None,
    more: Mapping[str, str] | None = None,
) -> list[str]:
    """What a real Kafka is given for the listeners of ``ports``, of which PLAINTEXT is its own.

    ``server`` is a file with key and chain, ``authority`` one with who signs clients; ``USERS`` are those of PLAIN.
    """
    module = "org.apache.kafka.common.security"
    accounts = " ".join(f'user_{name}="{password}"' for name, password in USERS.items() if name.isalpha())
    modules = {
        "PLAIN": f"{module}.plain.PlainLoginModule required {accounts};",
        "SCRAM-SHA-256": f"{module}.scram.ScramLoginModule required;",
        "SCRAM-SHA-512": f"{module}.scram.ScramLoginModule required;",
        "OAUTHBEARER": f'{module}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
    }
    jaas = [
        f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config={modules[mechanism]}"
        for name, protocol in protocols.items()
        if protocol.startswith("SASL")
        for mechanism in MECHANISMS
    ]
    addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    spoken = ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
    return [
        f"listeners={addresses},CONTROLLER://127.0.0.1:{controller}",
        f"listener.security.protocol.map={spoken},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        *_common(server, authority),
        *jaas,
        *(f"{key}={value}" for key, value in (more or {}).items()),
    ]


def daemon_settings(
    protocols: Sequence[str],
    *,
    server: Path | None = None,
    authority: Path | None = None,
    more: Mapping[str, str] | None = None,
) -> list[str]:
    """What a daemon is given for listeners of ``protocols``, in their order: whoever comes by PLAINTEXT administers."""
    settings = [
        f"listeners={','.join(f'{protocol}://127.0.0.1:0' for protocol in protocols)}",
        "super.users=User:ANONYMOUS",
        "seglog.sasl.oauthbearer.unsecured=true",
        "group.initial.rebalance.delay.ms=0",
        *_common(server, authority),
        *(f"{key}={value}" for key, value in (more or {}).items()),
    ]
    return [argument for setting in settings for argument in ("--set", setting)]


def _common(server: Path | None, authority: Path | None) -> list[str]:
    settings = [f"sasl.enabled.mechanisms={','.join(MECHANISMS)}", f"ssl.principal.mapping.rules={MAPPING}"]
    if server is not None:
        settings += ["ssl.keystore.type=PEM", f"ssl.keystore.location={server}"]
    if authority is not None:
        settings += ["ssl.truststore.type=PEM", f"ssl.truststore.location={authority}"]
    return settings
