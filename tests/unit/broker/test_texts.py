"""Values as people read them."""

from seglog_broker.texts import bytes_text, counted, range_text, size_text, time_text
from tests.support import each_case


@each_case(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (10 * 1024**2, "10.0 MiB"),
        (5 * 1024**4, "5,120.0 GiB"),
    ],
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert size_text(size) == text


@each_case(
    ("timestamp", "text"),
    [
        (-1, "-"),
        (None, "-"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1546300800123, "2019-01-01T00:00:00.123Z"),
        (-86_400_000, "1969-12-31T00:00:00.000Z"),
        (2**63 - 1, "@9223372036854775807"),
        (-(2**63), "@-9223372036854775808"),
    ],
)
def test_times_are_utc_and_none_is_a_dash(timestamp: int | None, text: str) -> None:
    assert time_text(timestamp) == text


def test_long_values_are_cut_with_their_size() -> None:
    assert bytes_text(b"x" * 2000) == f"'{'x' * 160}'... (2,000 bytes)"
    assert bytes_text(b"\xff" * 2000).endswith("... (2,000 bytes)")
    assert bytes_text(None) == "null"
    assert bytes_text(b"") == "''"


def test_counts_have_their_plural() -> None:
    assert [counted(count, "batch", "batches") for count in (0, 1, 1200)] == ["0 batches", "1 batch", "1,200 batches"]


def test_a_range_of_bytes_ends_with_its_last_one() -> None:
    assert range_text(100, 2148) == "bytes 100 to 2147 (2.0 KiB)"
