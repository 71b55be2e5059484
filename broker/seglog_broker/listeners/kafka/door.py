"""What all connections of the Kafka listener share: its engine, its settings, its address."""

import ipaddress
import struct
from typing import Final, NamedTuple

from seglog_broker.config import BrokerConfig
from seglog_broker.coordinators.groups.groups_api import Groups
from seglog_broker.listeners.kafka.engine import KafkaEngine
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX, Room
from seglog_broker.storage.directory.identity import NODE_ID
from seglog_protocol.errors import InvalidRequestError

LEADER_EPOCH: Final = 0
"""The leader epoch that clients are told for partitions without a log in service."""


class Endpoint(NamedTuple):
    """Where clients are to connect."""

    host: str
    port: int


class Caller(NamedTuple):
    """Who sent a request: what its answer depends on beside the request itself."""

    engine: KafkaEngine
    endpoint: Endpoint
    """The address that this client is told to use."""
    client_id: str | None
    client_host: str
    """The address that it comes from, as ``host_shown`` has it."""
    room: Room
    """The memory of the response."""

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        return self.engine.config

    @property
    def groups(self) -> Groups:
        """The groups that the broker serves."""
        return self.engine.groups

    async def turn(self) -> None:
        """Wait for the next turn of a request with much work, and for the memory of a large response."""
        await self.engine.turn()
        await self.room.wait()

    def take(self, size: int) -> None:
        """Count ``size`` bytes before a part of the response is made. Raises InvalidRequestError for too many."""
        if not self.room.add(size):
            raise InvalidRequestError(
                f"one response takes at most {RESPONSE_BYTES_MAX // 2**20} MiB: ask for less at a time", field=""
            )

    @property
    def node_id(self) -> int:
        """The only node of the cluster."""
        return NODE_ID


def host_shown(host: str) -> str:
    """The address of a client as Kafka shows it in groups: ``/192.0.2.7``, ``/2001:db8:0:0:0:0:0:1``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"/{host}"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return f"/{address.ipv4_mapped}"
        scope = f"%{address.scope_id}" if address.scope_id else ""
        return "/" + ":".join(f"{part:x}" for part in struct.unpack(">8H", address.packed)) + scope
    return f"/{address}"
