"""Quotas of clients: kept, described and altered together, and how many there may be."""

from collections.abc import AsyncIterator, Mapping

import pytest
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config.dynamic_config import ENTITIES_MAX, DynamicConfig
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.errors import PolicyViolationError
from seglog_protocol.quotas import Entity, entity_of
from tests.logs import ManualClock
from tests.unit.broker.brokers import open_broker

ANN = entity_of({"user": "ann"})
BOTH = entity_of({"user": "ann", "client-id": None})
HERE = entity_of({"ip": "127.0.0.1"})


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = open_broker(ForgetfulFileSystem(), clock=ManualClock(1))
    yield broker
    broker.close()


async def test_quotas_are_there_after_a_power_cut_and_told(broker: Broker) -> None:
    with capture_logs() as logs:
        changes = {ANN: {"producer_byte_rate": 9.0}, HERE: {"connection_creation_rate": 2.0}}
        await broker.configs.alter_clients(changes, "User:admin", validate_only=True)
        assert not broker.live_config.dynamic.clients
        await broker.configs.alter_clients(changes, "User:admin", validate_only=False)
        await broker.configs.alter_clients(
            {BOTH: {"request_percentage": 0.5}, HERE: {"nope": None}}, "", validate_only=False
        )
        await broker.configs.alter_clients({ANN: {"producer_byte_rate": None}}, "User:admin", validate_only=False)
    assert isinstance(broker.fs, ForgetfulFileSystem)
    found = open_broker(broker.fs.found_after(POWER_LOSS), clock=ManualClock(1))
    expected = {HERE: {"connection_creation_rate": 2.0}, BOTH: {"request_percentage": 0.5}}
    assert found.live_config.dynamic.clients == broker.live_config.dynamic.clients == expected
    found.close()
    assert [
        (line["entity"], line["quotas"], line["principal"]) for line in logs if line["event"] == "client_quotas_changed"
    ] == [
        ("user ann", {"producer_byte_rate": 9.0}, "User:admin"),
        ("ip 127.0.0.1", {"connection_creation_rate": 2.0}, "User:admin"),
        ("user ann, default client-id", {"request_percentage": 0.5}, ""),
        ("user ann", {}, "User:admin"),
    ]


async def test_so_many_entities_have_quotas() -> None:
    clients = {entity_of({"user": f"u{number}"}): {"producer_byte_rate": 1.0} for number in range(ENTITIES_MAX)}
    fs = ForgetfulFileSystem()
    fs.load({"/data/seglog-configs.json": encode_dynamic_configs(DynamicConfig(clients=clients))})
    broker = open_broker(fs, clock=ManualClock(1))
    known, taken = entity_of({"user": "u7"}), entity_of({"user": "u8"})
    more: dict[Entity, Mapping[str, float | None]] = {ANN: {"producer_byte_rate": 1.0}}
    with pytest.raises(PolicyViolationError, match="at most 5,000 are possible"):
        await broker.configs.alter_clients(more, "", validate_only=False)
    more |= {known: {"producer_byte_rate": 2.0}, taken: {"producer_byte_rate": None}}
    await broker.configs.alter_clients(more, "", validate_only=False)
    assert len(broker.live_config.dynamic.clients) == ENTITIES_MAX
    assert broker.live_config.dynamic.clients[known] == {"producer_byte_rate": 2.0}
    broker.close()
