"""The address that Kafka's clients are told to use."""

import pytest

from seglog_broker.config import load_config
from seglog_broker.listeners.kafka.listener import advertised

LISTENERS = "listeners=PLAINTEXT://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093"


@pytest.mark.parametrize(
    ("flags", "port", "address"),
    [
        ([], 9092, None),
        (["advertised.listeners=PLAINTEXT://a:1"], 9092, ("a", 1)),
        ([LISTENERS, "advertised.listeners=PLAINTEXT://a:1"], 9093, ("a", 1)),
        ([LISTENERS, "advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:2"], 9092, ("a", 1)),
        ([LISTENERS, "advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:2"], 9093, ("b", 2)),
        (["listeners=PLAINTEXT://127.0.0.1:0", "advertised.listeners=PLAINTEXT://a:1"], 40_000, ("a", 1)),
    ],
)
def test_each_listener_has_its_own_or_the_only_one(
    flags: list[str], port: int, address: tuple[str, int] | None
) -> None:
    config, _ = load_config(None, "", {}, flags)
    assert advertised(config, port) == address
