"""HOST:PORT as people write it."""

import pytest

from seglog.core.dialing import Address, parse_address
from tests.support import each_case


@each_case(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 9192)),
        ("localhost:9999", Address("localhost", 9999)),
        (" 10.0.0.1:1 ", Address("10.0.0.1", 1)),
        ("[::1]", Address("::1", 9192)),
        ("[::1]:9999", Address("::1", 9999)),
        ("fe80::1", Address("fe80::1", 9192)),
    ],
)
def test_what_can_be_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@each_case(
    "text",
    [
        "",
        ":9192",
        "host:",
        "host:0",
        "host:65536",
        "host:x",
        "[::1",
        "[::1]x",
        "a b",
        "h:²",
        "/var/lib",
        "./data",
        "41000",
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        parse_address(text)
