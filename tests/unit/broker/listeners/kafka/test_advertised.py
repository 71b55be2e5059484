"""The address that Kafka's clients are told to use, and the names that tie it to a listener."""

import pytest

from seglog_broker.config import load_config
from seglog_broker.config.kafka_configs import ResourceType
from seglog_broker.listeners.serving import advertised, kafka_places
from seglog_protocol.errors import InvalidConfigError
from seglog_protocol.kafka.messages import DescribeConfigsRequest
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import kafka

TWO = "listeners=PLAINTEXT://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093"
NAMED = "listeners=INTERNAL://[::1]:2,External://[::1]:1"
MAP = "listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT"


@each_case(
    ("flags", "place", "address"),
    [
        ([], 0, None),
        (["advertised.listeners=PLAINTEXT://a:1"], 0, ("a", 1)),
        ([TWO, "advertised.listeners=PLAINTEXT://a:1"], 1, ("a", 1)),
        ([TWO, "advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:2"], 0, ("a", 1)),
        ([TWO, "advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:2"], 1, ("b", 2)),
        (["listeners=PLAINTEXT://127.0.0.1:0", "advertised.listeners=PLAINTEXT://a:1"], 0, ("a", 1)),
        ([NAMED, MAP, "advertised.listeners=EXTERNAL://out:1,INTERNAL://in:2"], 0, ("in", 2)),
        ([NAMED, MAP, "advertised.listeners=EXTERNAL://out:1,INTERNAL://in:2"], 1, ("out", 1)),
        ([NAMED, MAP, "advertised.listeners=internal://in:2"], 0, ("in", 2)),
        ([NAMED, MAP, "advertised.listeners=INTERNAL://in:2"], 1, None),
    ],
)
def test_each_listener_has_that_of_its_name(flags: list[str], place: int, address: tuple[str, int] | None) -> None:
    config, _ = load_config(None, "", {}, flags)
    assert advertised(config, place) == address


PROTOCOLS = (
    "it must be NAME:PROTOCOL, with commas between several; a protocol is PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL."
)


@each_case(
    ("flags", "said_of", "reason"),
    [
        (
            [NAMED],
            "listeners",
            "listener.security.protocol.map does not say what INTERNAL speaks: add INTERNAL:PLAINTEXT to it.",
        ),
        (
            [NAMED, "listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL"],
            "listeners",
            (
                "EXTERNAL is to speak SASL_SSL, and there is no certificate for it. Set ssl.keystore.location to a PEM "
                "file with key and chain; seglogd certificates --to DIR makes one for a trial."
            ),
        ),
        (
            [NAMED, MAP, "advertised.listeners=PLAINTEXT://a:1"],
            "advertised.listeners",
            "no listener is named PLAINTEXT; in listeners there are EXTERNAL, INTERNAL.",
        ),
        (
            ["listeners=PLAINTEXT://127.0.0.1:9192"],
            "listeners",
            "seglog.listen and PLAINTEXT of listeners have the same port, 9192; give one of them another.",
        ),
        (["listener.security.protocol.map=INTERNAL:TLS"], "listener.security.protocol.map", PROTOCOLS),
        (["listeners=:9092"], "listeners", "it must be addresses such as PLAINTEXT://127.0.0.1:9092."),
    ],
)
def test_a_listener_that_cannot_be_served_is_refused_with_what_to_do(
    flags: list[str], said_of: str, reason: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_config(None, "", {}, flags)
    (value,) = [flag.partition("=")[2] for flag in flags if flag.startswith(f"{said_of}=")]
    origin = f" (flag --set {said_of})" if reason.startswith("it must be") else ""
    assert caught.value.message == f"{said_of} = {value}{origin} cannot be used: {reason}"


def test_a_listener_for_controllers_is_not_opened() -> None:
    flags = [
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
        "controller.listener.names=CONTROLLER",
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    ]
    config, warnings = load_config(None, "", {}, flags)
    assert [place.address for place in kafka_places(config)] == ["127.0.0.1:9092"]
    assert advertised(config, 0) == ("localhost", 9092)
    assert len(warnings) == 1
    assert warnings[0].startswith("controller.listener.names ")


@pytest.mark.parametrize("value", ["PLAINTEXT://a:1", ""])
async def test_the_configuration_shows_what_was_set_or_the_address_that_is_told(value: str) -> None:
    async with kafka(f"advertised.listeners={value}") as served:
        peer = await served.connect()
        told = "PLAINTEXT://{}:{}".format(*peer.stream.socket.getpeername())
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=ResourceType.BROKER, resource_name="1", configuration_keys=["advertised.listeners"]
        )
        (result,) = (await peer.ask(DescribeConfigsRequest(resources=[resource]))).results
    (entry,) = result.configs
    assert entry.value == (value or told)
