"""A page that is compressed as it is made is what was put in, whole."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.listeners.http.coding import Gzip, coding_of
from tests.support import each_case


@given(st.lists(st.binary(max_size=3_000) | st.just(b"seglog_topics 1\n" * 3_000), max_size=20), st.binary(max_size=9))
def test_what_comes_out_is_what_was_put_in(parts: list[bytes], last: bytes) -> None:
    coding = Gzip()
    sent = b"".join(map(coding.add, parts))
    assert gzip.decompress(sent + coding.end(last)) == b"".join(parts) + last


def test_a_page_that_breaks_off_is_no_gzip() -> None:
    coding = Gzip()
    with pytest.raises((EOFError, zlib.error)):
        gzip.decompress(b"".join(coding.add(b"%d" % number) for number in range(100_000)))


@each_case(
    ("header", "name"),
    [
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("GZip ; Q=0.1", "gzip"),
        ("deflate,gzip, br", "gzip"),
        ("zstd;q=1.0,gzip;q=0", None),
        ("gzip;q=nan", None),
        ("*", None),
        (";;,=q", None),
    ],
)
def test_it_is_gzip_for_those_who_name_it(header: str, name: str | None) -> None:
    assert coding_of(header).name == name
