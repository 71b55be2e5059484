"""Requests that differ a little from others get the answers, and leave the logs, that they have without templates.

The same frames go to two brokers: to one over a connection that has templates, to the other each over a new one.
"""

import random
import struct
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio
from hypothesis import given, settings
from structlog.testing import capture_logs

from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.wire import KafkaWire
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.kafka import WireError, messages, read_request, read_request_header, write_request
from seglog_protocol.kafka.frames import PRODUCE
from tests.process.faults.hostile_kafka_peer import change
from tests.support import examples
from tests.unit.broker.listeners.kafka.kafka_peer import NOW, KafkaPeer, KafkaServed, kafka, produce
from tests.unit.broker.listeners.kafka.test_group_offsets import request_of
from tests.unit.broker.listeners.kafka.test_kafka_served_together import TOPIC_IDS, replaced
from tests.unit.broker.listeners.kafka.test_templates import COUNT, commit, heartbeat, look_up, poll
from tests.unit.broker.listeners.test_served_together import SEEDS, files_of
from tests.unit.protocol.kafka.mutations import mutated

REQUESTS: Final = 60
NAMES: Final = ["plain", "stamped", "small"]
IDS: Final[Any] = SimpleNamespace(id_of=TOPIC_IDS.get)
MAKERS: Final[dict[str, Any]] = {"Fetch": poll, "ListOffsets": look_up, "Heartbeat": heartbeat, "OffsetCommit": commit}
NONE: Final = ProducerIdAndEpoch(-1, -1)

Known = dict[str | None, ProducerIdAndEpoch]
"""By transactional id."""


async def begun(served: KafkaServed) -> Known:
    known: Known = {None: NONE}
    service = served.broker.transactions
    for key, count in (("one", 3), ("two", 1)):
        known[key] = producer = await service.init_producer(key, 60_000)
        await service.add_partitions(key, producer, [("plain", number) for number in range(count)], version=1)
        await service.add_offsets(key, producer, "group", version=1)
    return known


def a_batch(key: str | None, dice: random.Random, known: Known) -> Any:
    """Nearly always of the request's own producer."""
    is_usual = dice.random() < 0.9
    producer = known[key] if is_usual else dice.choice([*known.values(), ProducerIdAndEpoch(99, 0)])
    data = encode_batch(
        [(NOW, b"key", b"value" * dice.randrange(1, 40), ())],
        codec=Codec.NONE if is_usual else Codec.ZSTD,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch + (dice.random() < 0.05),
        base_sequence=-1 if producer == NONE else dice.randrange(4),
        transactional=producer != NONE and (is_usual or dice.random() < 0.5),
    )
    return None if dice.random() < 0.02 else memoryview(data)


def a_request(api: str, dice: random.Random, known: Known) -> Any:
    asked: Any
    if api in MAKERS:
        return MAKERS[api](IDS, dice.randrange(COUNT))
    if api == "TxnOffsetCommit":
        asked = request_of(2, {"plain": [0, 1, 7]}, "group")
        asked.transactional_id, (asked.producer_id, asked.producer_epoch) = "one", known["one"]
        asked.topics[0].partitions[0].committed_offset = dice.randrange(9)
        return asked
    key = dice.choice([*known])
    topic = "plain" if dice.random() < 0.9 else dice.choice(NAMES)
    numbers = dice.choices([0, 1, 2, 7], [3, 3, 3, 1], k=dice.choice([1, 1, 2, 3]))
    acks = -1 if dice.random() < 0.9 else dice.choice([0, 1])
    asked = produce(*[(topic, number, a_batch(key, dice, known)) for number in numbers], acks=acks)
    asked.transactional_id, asked.topic_data[0].topic_id = key, TOPIC_IDS[topic]
    return asked


def a_content(api: str, version: int, dice: random.Random, known: Known) -> bytes | None:
    """A request, perhaps with a field or bytes of it changed; None if it would wait, or cannot be written."""
    asked, what = a_request(api, dice, known), dice.random()
    if what > 0.7:
        change(asked, dice)
    try:
        content = b"".join(write_request(1, "client", asked, version))[4:]
    except (struct.error, ValueError, TypeError, AttributeError, OverflowError):
        return None
    if 0.4 < what < 0.7:
        content = content[:8] + mutated(dice, content[8:])
    try:
        asked = read_request(read_request_header(memoryview(content)), memoryview(content))
    except WireError:
        return content
    return None if getattr(asked, "max_wait_ms", 0) > 0 else content


class Side:
    """One of the brokers, and a connection to it."""

    def __init__(self, served: KafkaServed, peer: KafkaPeer) -> None:
        self.served, self.peer = served, peer
        self.ids = [(TOPIC_IDS[name], served.id_of(name)) for name in NAMES]

    async def answer(self, content: bytes) -> bytes | None:
        """All that comes for a request before the answer to one behind it; None if the connection ends."""
        asked = replaced(content, self.ids)
        behind = b"".join(write_request(99, None, messages.ApiVersionsRequest(), 0))
        await self.peer.stream.send_all(struct.pack(">i", len(asked)) + asked + behind)
        told = b""
        try:
            while not (frame := await self.peer.receive_frame()).startswith(b"\0\0\0\x63"):
                told += frame
        except (AssertionError, trio.BrokenResourceError):
            await self.begin_again()
            return None
        return replaced(told, [(drawn, name) for name, drawn in self.ids])

    async def begin_again(self) -> None:
        await self.peer.stream.aclose()
        self.peer = await self.served.connect()

    async def has_template(self, content: bytes) -> bool:
        wire = (await self.served.connection_of(self.peer)).wire
        assert isinstance(wire, KafkaWire)
        return wire.templates.find(memoryview(replaced(content, self.ids))) is not None

    def logs(self) -> dict[str, bytes]:
        fs: Any = self.served.broker.fs
        return {path: data for path, data in files_of(fs).items() if not path.startswith("/data/__")}


async def compared(api: str, version: int, seed: int) -> int:
    """Ask both brokers; how many requests had a template."""
    dice = random.Random(seed)
    repeated = 0
    async with kafka() as left, kafka() as right:
        known = await begun(left)
        assert await begun(right) == known
        warm, new = Side(left, await left.connect()), Side(right, await right.connect())
        for content in [a_content(api, version, dice, known) for _ in range(REQUESTS)]:
            if content is not None:
                repeated += await warm.has_template(content)
                assert await warm.answer(content) == await new.answer(content), content.hex()
                await new.begin_again()
        assert warm.logs() == new.logs()
        assert warm.logs()
    return repeated


@pytest.mark.parametrize("api", [api.name for api in APIS.values() if api.repeats is not None or api.key == PRODUCE])
@given(SEEDS)
@settings(max_examples=examples(20), deadline=None)
def test_a_changed_request_is_served_as_without_templates(api: str, seed: int) -> None:
    (versions,) = [known.versions for known in APIS.values() if known.name == api]
    with capture_logs():
        assert trio.run(compared, api, versions[seed % len(versions)], seed), "some have a template"
