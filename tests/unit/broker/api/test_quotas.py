"""Quotas of clients: kept, described and altered together, and how many there may be."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.api.quotas import Changes, Filter
from seglog_broker.config.client_quotas import ENTITIES_MAX, Entity, entity_of
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
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
        await broker.quotas.alter(changes, "User:admin", validate_only=True)
        assert not broker.live_config.dynamic.clients
        await broker.quotas.alter(changes, "User:admin", validate_only=False)
        await broker.quotas.alter({BOTH: {"request_percentage": 0.5}, HERE: {"nope": None}}, "", validate_only=False)
        await broker.quotas.alter({ANN: {"producer_byte_rate": None}}, "User:admin", validate_only=False)
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


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter({}, frozenset(), is_strict=False), {ANN, BOTH, HERE}),
        (Filter({}, frozenset(), is_strict=True), set()),
        (Filter({"user": "ann"}, frozenset(), is_strict=False), {ANN, BOTH}),
        (Filter({"user": "ann"}, frozenset(), is_strict=True), {ANN}),
        (Filter({"user": "ann"}, frozenset({"client-id"}), is_strict=True), {BOTH}),
        (Filter({"user": "ann", "client-id": None}, frozenset(), is_strict=True), {BOTH}),
        (Filter({"user": None}, frozenset(), is_strict=False), set()),
        (Filter({}, frozenset({"ip"}), is_strict=False), {HERE}),
    ],
)
def test_a_filter_lets_through_what_has_its_names_and_types(wanted: Filter, found: set[object]) -> None:
    assert {entity for entity in (ANN, BOTH, HERE) if wanted.fits(entity)} == found


async def test_so_many_entities_have_quotas() -> None:
    clients = {entity_of({"user": f"u{number}"}): {"producer_byte_rate": 1.0} for number in range(ENTITIES_MAX)}
    fs = ForgetfulFileSystem()
    fs.load({"/data/seglog-configs.json": encode_dynamic_configs(DynamicConfig(clients=clients))})
    broker = open_broker(fs, clock=ManualClock(1))
    known, taken = entity_of({"user": "u7"}), entity_of({"user": "u8"})
    rate: Changes = {"producer_byte_rate": 1.0}
    steps: list[tuple[dict[Entity, Changes], Entity]] = [
        ({ANN: rate, known: {"producer_byte_rate": 2.0}}, ANN),
        ({taken: {"producer_byte_rate": None}, ANN: rate, BOTH: rate}, BOTH),
    ]
    for changes, refused in steps:
        found = await broker.quotas.alter(changes, "", validate_only=False)
        assert found.keys() == {refused}
        assert len(broker.live_config.dynamic.clients) == ENTITIES_MAX
    assert broker.live_config.dynamic.clients[known] == {"producer_byte_rate": 2.0}
    broker.close()
