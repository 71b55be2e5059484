"""Keys of one listener: ``listener.name.NAME.KEY`` says for the listener NAME of Kafka's what KEY says for all."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog_broker.config.keys import Described, Key, Origin
from seglog_broker.config.values import Value

PREFIX: Final = "listener.name."

LISTENER_KEYS: Final = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.principal.mapping.rules",
    "sasl.enabled.mechanisms",
    "connections.max.reauth.ms",
    "max.connections",
    "max.connection.creation.rate",
)
"""The keys that a listener may have for itself; all others are the same for every listener."""


class ListenerKey(NamedTuple):
    """A key as it is written for one listener: its two parts."""

    listener: str
    """In capitals."""
    key: str

    @property
    def name(self) -> str:
        """The whole of it, as Kafka has it: the name of the listener in small letters."""
        return f"{PREFIX}{self.listener.lower()}.{self.key}"


def parse_listener_key(name: str) -> ListenerKey | None:
    """The parts of such a key, in whose listener capitals do not matter; None for any other key."""
    if not name.startswith(PREFIX):
        return None
    rest = name.removeprefix(PREFIX)
    key = next((key for key in LISTENER_KEYS if rest.endswith(f".{key}")), "")
    return ListenerKey(rest.removesuffix(f".{key}").upper(), key) if key else None


@dataclass(frozen=True, slots=True)
class ListenerSetting:
    """A setting of one listener."""

    listener: str
    """In capitals."""
    key: Key
    """That of all listeners."""
    value: Value = field(repr=False)
    origin: Origin

    @property
    def name(self) -> str:
        """The key under which it is written."""
        return ListenerKey(self.listener, self.key.name).name

    def described(self) -> Described:
        """Its description."""
        return self.key.described(self.value, self.origin)._replace(key=self.name)
