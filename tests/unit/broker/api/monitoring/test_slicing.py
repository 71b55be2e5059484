"""Samples are cut into slices by their number and by the time that they took."""

from collections.abc import Iterator

from seglog_broker.api.monitoring.families import Family, Kind
from seglog_broker.api.monitoring.samples import (
    SLICE_SAMPLES_MAX,
    SLICE_SECONDS,
    TURN_BYTES,
    TURN_SECONDS,
    Buckets,
    Column,
    Sample,
    Slice,
    in_turns,
    sliced,
    weight,
)
from tests.unit.broker.brokers import Stopwatch

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
