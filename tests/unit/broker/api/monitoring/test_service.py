"""The families of a broker: in slices, of a bounded number of rows, in pages of the native request ``samples``."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.__main__ import page
from seglog_broker.api.monitoring.families import FAMILIES, STANDBY_FAMILIES, Family, Kind
from seglog_broker.api.monitoring.samples import (
    NAME_CHARACTERS_MAX,
    ROWS_MAX,
    SAMPLES_MAX,
    SLICE_SAMPLES_MAX,
    SLICE_SECONDS,
    TURN_BYTES,
    TURN_SECONDS,
    Buckets,
    Column,
    KeptRows,
    Sample,
    Slice,
    in_turns,
    select,
    sliced,
    weight,
)
from seglog_broker.api.monitoring.service import PAGE_BYTES, Monitoring, answer_samples
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX, ResponseMemory
from seglog_protocol import messages
from seglog_protocol.errors import LocalProtocolError
from seglog_protocol.messages import SamplesRequest, decode_samples
from tests.unit.broker.api.monitoring.test_topic_sources import append, commit, create, samples, value
from tests.unit.broker.brokers import Stopwatch


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


# --- The native request ``samples``: pages of families, each made in turns --------------------------------------------


NAMES: Final = [family.name for family in FAMILIES]


async def test_a_page_ends_with_the_family_that_makes_it_large() -> None:
    many = [Sample((str(number), "x" * 200), number) for number in range(10_000)]
    monitoring = Monitoring({name: lambda: many for name in NAMES[:3]})
    turns: list[None] = []
    room = ResponseMemory().room()

    async def turn() -> None:
        turns.append(None)

    after, found = "", list[str]()
    for _ in range(3):
        reply, payload = await answer_samples(monitoring, SamplesRequest(after=after), turn, room)
        assert PAGE_BYTES < len(payload) < 4 * PAGE_BYTES
        assert 0 <= len(payload) - room.used < 10, "counted, but for the head of the list"
        room.close()
        parts = decode_samples(payload)
        assert {part.name for part in parts} == {parts[0].name}
        assert sum(len(part.samples) for part in parts) == 10_000
        found.append(after := parts[-1].name)
        if not reply.more:
            break
    reply, payload = await answer_samples(monitoring, SamplesRequest(after=after), turn, room)
    assert not reply.more
    assert found == NAMES[:3]
    assert len(turns) >= 60, "500 samples in each"


async def test_a_family_that_is_larger_than_a_reply_is_an_error() -> None:
    many = [Sample((str(number), "x" * 200), number) for number in range(1_000)]
    memory = ResponseMemory()
    memory.response_bytes_max = 100_000
    assert memory.response_bytes_max < RESPONSE_BYTES_MAX
    with pytest.raises(LocalProtocolError, match=f"{NAMES[0]} are larger"):
        await answer_samples(
            Monitoring({NAMES[0]: lambda: many}), SamplesRequest(), trio.lowlevel.checkpoint, memory.room()
        )


async def names(broker: Broker, request: SamplesRequest) -> list[str]:
    """The names of the families of a reply; a family whose samples took long to make has several items there."""
    reply, payload = await answer_samples(broker.monitoring, request, broker.turn, broker.response_memory.room())
    assert not reply.more
    return [name for name, _ in groupby(family.name for family in decode_samples(payload))]


async def test_every_family_is_there_once_also_without_samples(broker: Broker) -> None:
    assert await names(broker, SamplesRequest()) == NAMES
    assert await names(broker, SamplesRequest(after=NAMES[-2])) == NAMES[-1:]
    assert await names(broker, SamplesRequest(after="unknown")) == []


# --- The page METRICS.md has every family of the table, and names are as Prometheus wants them ------------------------


def test_every_family_stands_on_the_page_once_with_its_kind_and_its_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram|info) \| .*?\| (.+) \|$", page(), re.MULTILINE)
    families = *FAMILIES, *STANDBY_FAMILIES
    assert sorted(rows) == sorted((family.name, family.kind.value, family.help) for family in families)


def test_names_are_as_prometheus_wants_them() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"(seglog|kafka)_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER), family.name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_created", "_ms"))


# --- Rows are kept from one scrape to the next, their values are not --------------------------------------------------


def test_rows_are_found_again_only_when_the_stamp_changes_and_values_are_read_each_time() -> None:
    stamp, numbers, found = [0], list(range(ROWS_MAX + 1)), list[int]()

    def find() -> Iterator[tuple[tuple[str, ...], int] | None]:
        for number in numbers:
            found.append(number)
            yield None
            yield (str(number),), number

    def read(factor: int) -> list[tuple[Sequence[tuple[str, ...]], list[object]]]:
        made = rows.each(lambda number: factor * number)()
        return [(column.labels, list(column.values)) for column in made if isinstance(column, Column)]

    rows = KeptRows(find, lambda: stamp[0])
    first, second = read(1), read(2)
    assert [len(values) for _, values in first] == [ROWS_MAX, 1]
    assert len(found) == ROWS_MAX + 1, "once"
    assert [one is other for (one, _), (other, _) in zip(first, second, strict=True)] == [True, True]
    assert second[0][1][:3] == [0, 2, 4]
    stamp[0], numbers[:] = 1, [7]
    assert [(kept, values) for kept, values in read(1)] == [([("7",)], [7])]


def test_what_changes_while_rows_are_found_has_them_found_again() -> None:
    stamp = [0]

    def find() -> Iterator[tuple[tuple[str, ...], int]]:
        stamp[0] += stamp[0] == 0
        yield (str(stamp[0]),), stamp[0]

    rows = KeptRows(find, lambda: stamp[0])
    found = []
    for _ in range(2):
        found += [column for column in rows.each(lambda row: row)() if isinstance(column, Column)]
    assert found[0].labels is not found[1].labels


def test_so_many_rows_are_kept_and_no_more() -> None:
    """Those that came while the others were found have no samples before the next page."""
    rows = KeptRows(lambda: (((str(number),), number) for number in range(2 * SAMPLES_MAX)), lambda: 0)
    for _ in range(2):
        columns = [column for column in rows.each(lambda row: row)() if isinstance(column, Column)]
        assert sum(len(column.values) for column in columns) == SAMPLES_MAX


def test_a_column_with_gaps_has_samples_for_the_rest() -> None:
    column = Column([("a",), ("b",), ("c",)], [1, None, 3])
    assert [(sample.labels, sample.value) for sample in column.samples] == [(("a",), 1), (("c",), 3)]


async def test_topics_that_come_and_go_and_grow_are_seen_by_the_next_scrape(broker: Broker) -> None:
    await create(broker, "a")
    name = "seglog_partition_log_end_offset"
    assert [s.labels for s in samples(broker, name)] == [("a", "0")]
    await create(broker, "b")
    append(broker, "a", 3)
    assert [(s.labels, s.value) for s in samples(broker, name)] == [(("a", "0"), 3), (("b", "0"), 0)]
    await broker.alter_topic(messages.AlterTopicRequest("b", partitions=2))
    assert [s.labels for s in samples(broker, name)] == [("a", "0"), ("b", "0"), ("b", "1")]
    await broker.delete_topic(messages.DeleteTopicRequest("a"))
    await create(broker, "a")
    assert value(broker, name, "a", "0") == 0, "that of the new topic"


async def test_offsets_that_are_committed_and_dropped_are_seen_also_while_a_page_is_made(broker: Broker) -> None:
    await create(broker, "t", 2)
    append(broker, "t", 5)
    commit(broker, "g", 1)
    name = "seglog_group_lag"
    assert [(s.labels, s.value) for s in samples(broker, name)] == [(("g", "t", "0"), 4)]
    commit(broker, "g", 3)
    commit(broker, "g", 0, partition=1)
    commit(broker, "h", 5)
    assert {s.labels: s.value for s in samples(broker, name)} == {
        ("g", "t", "0"): 2,
        ("g", "t", "1"): 0,
        ("h", "t", "0"): 0,
    }
    committed = broker.groups._offsets.committed
    before = committed.changes
    commit(broker, "g", 4)
    assert committed.changes == before, "the same rows"
    slices = broker.monitoring.slices(["seglog_group_committed_offset", name])
    assert len(next(slices).samples) == 3
    committed.drop("h", ("t", 0))
    assert {s.labels for piece in slices for s in piece.samples} == {("g", "t", "0"), ("g", "t", "1")}
    committed.drop("g", ("t", 0))
    committed.put("g", ("t", 0), CommittedOffset(5, -1, "", 0))
    assert value(broker, name, "g", "t", "0") == 0


async def test_the_size_of_a_log_is_that_of_its_segments_whenever_these_change(broker: Broker) -> None:
    await create(broker, "t", segment_bytes=1024)
    log = broker.partitions["t", 0].log
    for _ in range(30):
        append(broker, "t")
        assert log.segments.known_size == log.segments.size_between(0, len(log.segments)) == log.size
    assert len(log.segments) > 2
    await broker.truncate(messages.TruncateRequest([messages.TruncatePartition("t", 0, 25)]))
    assert log.segments.known_size == log.segments.size_between(0, len(log.segments)) == log.size


# --- Of very many topics and groups some have samples of their own, and how many is bounded ---------------------------


def test_of_very_many_topics_and_groups_the_largest_have_samples() -> None:
    sizes = {f"t{number}": number for number in range(1000)}
    assert select(sizes, dict.fromkeys(sizes, 1), 3) == ["t999", "t998", "t997"]
    assert select(sizes, dict.fromkeys(sizes, 1), 0) == []
    assert select({"a": 1, "b": 1}, {"a": 1, "b": 1}, 2) == ["a", "b"], "of equal size by name"


def test_samples_of_all_together_are_bounded_and_what_does_not_fit_keeps_nothing_smaller_out() -> None:
    sizes = {"huge": 9, "half": 8, "more": 7, "small": 6}
    samples = {"huge": SAMPLES_MAX + 1, "half": SAMPLES_MAX // 2, "more": SAMPLES_MAX // 2 + 1, "small": 10}
    assert select(sizes, samples, 10) == ["half", "small"]


def test_very_long_names_have_no_samples() -> None:
    fits, long = "g" * NAME_CHARACTERS_MAX, "g" * (NAME_CHARACTERS_MAX + 1)
    assert select({fits: 1, long: 2}, {fits: 1, long: 1}, 10) == [fits]


# --- Samples are cut into slices by their number and by the time that they took ---------------------------------------


FAMILY = Family("seglog_x", Kind.GAUGE, "An example.", ("n",))


def test_a_slice_has_so_many_samples_and_a_histogram_counts_as_its_buckets() -> None:
    histogram = Sample(("h",), Buckets((1.0, 2.0), (1, 2, 3), 7.5))
    samples = [*(Sample((str(number),), number) for number in range(SLICE_SAMPLES_MAX - 2)), histogram, histogram]
    slices = list(sliced(FAMILY, lambda: samples, Stopwatch()))
    assert [len(piece.samples) for piece in slices] == [SLICE_SAMPLES_MAX - 2, 2]
    assert [sample for piece in slices for sample in piece.samples] == samples
    assert all(sum(map(weight, piece.samples)) <= SLICE_SAMPLES_MAX for piece in slices)


def test_a_slice_ends_when_it_took_long_also_without_samples() -> None:
    stopwatch = Stopwatch()

    def slow() -> Iterator[Sample | None]:
        for number in range(6):
            stopwatch.now += SLICE_SECONDS * 0.6
            yield Sample((str(number),), number) if number == 5 else None

    slices = list(sliced(FAMILY, slow, stopwatch))
    assert [len(piece.samples) for piece in slices] == [0, 0, 1]


def test_a_family_without_samples_has_one_empty_slice() -> None:
    assert [piece.samples for piece in sliced(FAMILY, lambda: (), Stopwatch())] == [[]]


def test_a_column_is_a_slice_and_one_without_values_a_pause() -> None:
    rows = [("a",), ("b",)]
    made = [Sample(("x",), 0), Column(rows, [1, 2]), Column(rows, [None, None]), None]
    slices = list(sliced(FAMILY, lambda: made, Stopwatch()))
    assert [[sample.labels for sample in piece.samples] for piece in slices] == [[("x",)], [("a",), ("b",)], []]


def test_slices_are_put_together_for_as_long_as_a_turn_may_take() -> None:
    stopwatch = Stopwatch()
    pieces = [Slice.of(FAMILY, [Sample((str(number),), number)] * (number != 1)) for number in range(7)]

    def encode(piece: Slice) -> bytes:
        stopwatch.now += TURN_SECONDS * 0.4
        return piece.samples[0].labels[0].encode()

    assert list(in_turns(pieces, encode, stopwatch)) == [[b"0", b"2", b"3"], [b"4", b"5", b"6"], []]
    large = list(in_turns(pieces[2:5], lambda _: bytes(TURN_BYTES), Stopwatch()))
    assert [len(parts) for parts in large] == [1, 1, 1, 0]
