"""What a transport tells of its peer."""

import pytest

from seglog_broker.listeners.transport import shown_host


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("192.0.2.7", "/192.0.2.7"),
        ("::1", "/0:0:0:0:0:0:0:1"),
        ("2001:db8::a:0", "/2001:db8:0:0:0:0:a:0"),
        ("fe80::1%eth0", "/fe80:0:0:0:0:0:0:1%eth0"),
        ("::ffff:192.0.2.7", "/192.0.2.7"),
        ("gone", "/gone"),
    ],
)
def test_addresses_are_shown_as_java_shows_them(host: str, shown: str) -> None:
    assert shown_host(host) == shown
