"""Addresses and settings as they are typed, and a broker's own listener for Kafka's clients."""

from pathlib import Path

import pytest

from seglog.core.security import Secret, Tls, target_of
from seglog.mirror.places import broker_place, kafka_place, properties_in
from seglog_protocol.messages import DescribeBrokerReply, DescribedListener
from tests.support import each_case


def reply(*listeners: DescribedListener) -> DescribeBrokerReply:
    return DescribeBrokerReply(
        config={}, warnings=[], listeners=list(listeners), versions={}, limits={}, now_ms=0, process=1, user=1
    )


def test_an_address_has_kafkas_port_and_its_scheme_says_whether_with_tls() -> None:
    place = kafka_place("kafka://one:1234,two,[::1]", {})
    assert place.name == "kafka://one:1234,two:9092,[::1]:9092"
    assert place.settings == {
        "bootstrap.servers": "one:1234,two:9092,[::1]:9092",
        "security.protocol": "PLAINTEXT",
    }
    assert kafka_place("kafkas://one", {"sasl.username": "u"}).settings["security.protocol"] == "SASL_SSL"


@each_case("url", ["one:9092", "http://one", "kafka://", "kafka://one:port", "kafka://user:secret@one"])
def test_what_is_no_address_gets_a_sentence_without_passwords(url: str) -> None:
    with pytest.raises(ValueError, match=r"kafka://HOST:PORT|--kafka-config|no address") as raised:
        kafka_place(url, {})
    assert "secret" not in str(raised.value)


def test_a_file_of_settings_is_read_and_shows_no_password(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# account\nsasl.username = u\nsasl.password=a=b\n\n")
    found = properties_in(str(file))
    assert found == {"sasl.username": "u", "sasl.password": "a=b"}
    assert "a=b" not in repr(found)
    assert "a=b" not in repr(kafka_place("kafka://one", found))
    file.write_text("enable.idempotence=false\n")
    with pytest.raises(ValueError, match=r"line 1: enable.idempotence is set by the mirror itself"):
        properties_in(str(file))
    file.write_text("secret\n")
    with pytest.raises(ValueError, match="NAME=VALUE") as raised:
        properties_in(str(file))
    assert "secret" not in str(raised.value)


def test_a_broker_is_reached_at_what_it_advertises_else_at_the_host_that_it_was_asked_at() -> None:
    plain = DescribedListener("PLAINTEXT", "PLAINTEXT", "0.0.0.0:9092")
    target = target_of("broker.example:9192")
    assert broker_place(target, reply(plain)).settings["bootstrap.servers"] == "broker.example:9092"
    told = DescribedListener("PLAINTEXT", "PLAINTEXT", "0.0.0.0:9092", "kafka.example:19092")
    assert broker_place(target, reply(told)).settings["bootstrap.servers"] == "kafka.example:19092"


def test_an_account_goes_to_a_listener_that_takes_it() -> None:
    plain = DescribedListener("PLAINTEXT", "PLAINTEXT", "0.0.0.0:9092")
    secure = DescribedListener("OUT", "SASL_SSL", "0.0.0.0:9093")
    target = target_of("broker:9192", user="u", password=Secret("p"), tls=Tls(ca="ca.pem"))
    place = broker_place(target, reply(plain, secure))
    assert place.settings == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    with pytest.raises(ValueError, match="wants an account"):
        broker_place(target_of("broker:9192"), reply(secure))


def test_a_broker_without_such_a_listener_says_how_to_get_one() -> None:
    native = DescribedListener("", "PLAINTEXT", "127.0.0.1:9192")
    http = DescribedListener("http", "PLAINTEXT", "127.0.0.1:9193")
    with pytest.raises(ValueError, match="listeners=PLAINTEXT"):
        broker_place(target_of("broker:9192"), reply(native, http))
