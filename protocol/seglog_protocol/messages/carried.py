"""A request of Kafka's wire within a native one: what both protocols can ask has one definition, Kafka's."""

from typing import ClassVar

from seglog_protocol.messages.base import Message, Request


class KafkaRequest(Request):
    """Ask what Kafka's clients can: the payload is a request of Kafka's wire, without its length."""

    api: ClassVar[str] = "kafka"
    is_plain: ClassVar[bool] = True


class KafkaReply(Message):
    """The payload is the response of Kafka's wire, likewise."""
