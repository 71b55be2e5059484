"""The client of seglog, a log broker on Kafka's own segment files.

    with seglog.connect("localhost:9192") as client:
        with client.producer("commits") as producer:
            producer.send(b"value", key="key")
        with client.consumer("commits", start="-1h") as consumer:
            for record in consumer:
                print(record.offset, record.value)

Names are imported on first use, so that a short command does not load modules it does not need.
"""
# ruff: noqa: F403, F405 - of what type checkers see, __all__ says which names are the client's

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Final

    from seglog.arrow import ArrowReader, Misfit, Values, WrittenTable, read_arrow, write_arrow
    from seglog.client import Client, connect
    from seglog.consumer import Consumer
    from seglog.core.committed_offsets import Committed
    from seglog.core.delivery import Receipt
    from seglog.core.offsets import PartitionLag, PartitionOffsets
    from seglog.core.queue_jobs import Job
    from seglog.core.records import ConsumerGap, FetchedBatch, GapLog, Record
    from seglog.core.security import Tls
    from seglog.core.timestamps import TimestampWarning
    from seglog.core.users import UserDescription
    from seglog.group_consumer import GroupConsumer
    from seglog.groups import GroupDescription, GroupOffset, OffsetReset
    from seglog.producer import Delivery, Producer
    from seglog.queue import Queue
    from seglog.transaction import Transaction
    from seglog_protocol.errors import *
    from seglog_protocol.messages import ConfigEntry, CreateTopicReply, HelloReply, TopicDescription
    from seglog_protocol.version import __version__

__all__ = [
    "ArrowReader",
    "AuthenticationError",
    "AuthorizationError",
    "Client",
    "ClientClosedError",
    "ClientError",
    "ClientTimeoutError",
    "Committed",
    "ConfigEntry",
    "ConnectionLostError",
    "Consumer",
    "ConsumerGap",
    "CorruptRecordError",
    "CreateTopicReply",
    "Delivery",
    "DeliveryFailed",
    "FencedInstanceError",
    "FetchedBatch",
    "GapLog",
    "GroupConsumer",
    "GroupDescription",
    "GroupError",
    "GroupOffset",
    "HelloReply",
    "InconsistentClusterIdError",
    "InconsistentTopicIdError",
    "InvalidConfigError",
    "Job",
    "JobLost",
    "MessageTooLargeError",
    "Misfit",
    "NonEmptyGroupError",
    "NotReachableError",
    "OffsetOutOfRangeError",
    "OffsetReset",
    "PartitionLag",
    "PartitionOffsets",
    "Producer",
    "ProtocolError",
    "Queue",
    "Receipt",
    "Record",
    "RegistryAwayError",
    "RegistryError",
    "RemoteProtocolError",
    "RequestError",
    "SeglogError",
    "StorageError",
    "TimestampWarning",
    "Tls",
    "TlsError",
    "TopicDescription",
    "TopicExistsError",
    "Transaction",
    "TransactionAborted",
    "TransactionFailed",
    "TransactionFenced",
    "TransactionUnanswered",
    "UnknownGroupError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnknownUserError",
    "UserDescription",
    "UserExistsError",
    "Values",
    "WrittenTable",
    "__version__",
    "connect",
    "read_arrow",
    "write_arrow",
]

_HOMES: "Final" = {
    "seglog.arrow": ("ArrowReader", "Misfit", "Values", "WrittenTable", "read_arrow", "write_arrow"),
    "seglog.client": ("Client", "connect"),
    "seglog.consumer": ("Consumer",),
    "seglog.core.committed_offsets": ("Committed",),
    "seglog.core.delivery": ("Receipt",),
    "seglog.core.offsets": ("PartitionLag", "PartitionOffsets"),
    "seglog.core.queue_jobs": ("Job",),
    "seglog.core.records": ("ConsumerGap", "FetchedBatch", "GapLog", "Record"),
    "seglog.core.security": ("Tls",),
    "seglog.core.timestamps": ("TimestampWarning",),
    "seglog.core.users": ("UserDescription",),
    "seglog.group_consumer": ("GroupConsumer",),
    "seglog.groups": ("GroupDescription", "GroupOffset", "OffsetReset"),
    "seglog.producer": ("Delivery", "Producer"),
    "seglog.queue": ("Queue",),
    "seglog.transaction": ("Transaction",),
    "seglog_protocol.messages": (
        "ConfigEntry",
        "CreateTopicReply",
        "HelloReply",
        "TopicDescription",
    ),
    "seglog_protocol.version": ("__version__",),
}
_HOME_OF: "Final" = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> "Any":
    from importlib import import_module  # noqa: PLC0415 - it takes a third of what is left

    if name not in __all__:
        raise AttributeError(f"module 'seglog' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF.get(name, "seglog_protocol.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
