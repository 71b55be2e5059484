"""The families of a broker, in slices."""

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.families import FAMILIES
from seglog_broker.api.monitoring.samples import Sample
from seglog_protocol import messages


def samples(broker: Broker, name: str) -> list[Sample]:
    """All samples of one family."""
    return [sample for piece in broker.monitoring.slices([name]) for sample in piece.samples]


def value(broker: Broker, name: str, *labels: str) -> object:
    """The value with these labels."""
    (found,) = [sample.value for sample in samples(broker, name) if sample.labels == labels]
    return found


async def test_families_come_in_their_order_and_samples_have_their_labels(broker: Broker) -> None:
    await broker.create_topic(messages.CreateTopicRequest("t", 3))
    seen = [piece.family for piece in broker.monitoring.slices()]
    places = [FAMILIES.index(family) for family in seen]
    assert places == sorted(places)
    for piece in broker.monitoring.slices():
        for sample in piece.samples:
            assert len(sample.labels) == len(piece.family.labels), piece.family.name


async def test_only_named_families_are_made_and_unknown_names_are_none(broker: Broker) -> None:
    await broker.create_topic(messages.CreateTopicRequest("t", 3))
    assert value(broker, "seglog_topics") == 1
    assert value(broker, "seglog_partitions", "serving") == 3
    assert {piece.family.name for piece in broker.monitoring.slices(["seglog_topics", "nothing"])} == {"seglog_topics"}
