"""The classes of all messages, made when they are first asked for: ``messages.ProduceRequest.TopicProduceData``.

Their fields, for people and type checkers, are in ``messages.pyi``, which an install writes from the table.
"""

from seglog_protocol.kafka.definitions import message_names
from seglog_protocol.kafka.structs import Message, message_class


def __getattr__(name: str) -> type[Message]:
    try:
        made = globals()[name] = message_class(name)
    except KeyError:
        raise AttributeError(f"Kafka has no message {name!r} that is known here", name=name) from None
    return made


def __dir__() -> list[str]:
    return list(message_names())
