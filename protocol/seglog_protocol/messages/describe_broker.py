"""What a broker tells about its configuration and its process."""

from typing import ClassVar

from seglog_protocol.messages.base import Int64, Message, Request, default
from seglog_protocol.messages.topics import ConfigEntry


class DescribeBrokerRequest(Request):
    """Ask for the configuration in force, the listeners and the process. No secret is in the reply."""

    api: ClassVar[str] = "describe_broker"


class DescribedListener(Message):
    """One socket that listens.

    ``name`` is empty for seglog's own, ``http`` for health and metrics, else as in ``listeners``. ``address`` is
    HOST:PORT on the broker's machine; ``advertised`` is where Kafka's clients are told to connect, None where that is
    the address they have reached.
    """

    name: str
    protocol: str
    address: str
    advertised: str | None = None


class DescribeBrokerReply(Message):
    """Every broker key with value and origin, and what the broker runs on.

    ``warnings`` are sentences about settings that can be used and leave something open, or ask for more than the
    machine has. ``versions`` are of seglogd, build, python and kernel. ``limits`` are counts that the machine grants
    (open_files, processors; memory in bytes; 0: unknown) and, in force after these, connections. ``user`` is the id
    of the process's user, ``process`` its own on its machine; ``now_ms`` is the broker's clock.
    """

    config: dict[str, ConfigEntry]
    warnings: list[str]
    listeners: list[DescribedListener]
    versions: dict[str, str]
    limits: dict[str, Int64]
    now_ms: Int64
    process: Int64 = default(0)
    user: Int64 = default(0)
