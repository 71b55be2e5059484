"""Kafka's error codes, against kio's."""

from kio.schema.errors import ErrorCode as KioErrorCode

from seglog_protocol.kafka.error_codes import ErrorCode


def test_codes_have_kafkas_names_and_are_retriable_as_kafka_says() -> None:
    ours = {code.value: (code.name, code.retriable) for code in ErrorCode}
    assert ours == {code.value: (code.name.upper(), code.retriable) for code in KioErrorCode}
    assert sorted(ours) == list(range(-1, 134))
