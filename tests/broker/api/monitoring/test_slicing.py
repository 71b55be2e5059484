"""Samples are cut into slices by their number and by the time that they took."""

from collections.abc import Iterator

from seglog_broker.api.monitoring.families import Family, Kind
from seglog_broker.api.monitoring.samples import SLICE_SAMPLES_MAX, Buckets, Sample
from seglog_broker.api.monitoring.slicing import SLICE_SECONDS, sliced, weight

FAMILY = Family("seglog_x", Kind.GAUGE, "An example.", ("n",))


class Stopwatch:
    """A clock that the test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


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
