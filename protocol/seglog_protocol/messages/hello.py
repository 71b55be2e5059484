"""Who is there, and what the broker counts."""

from typing import ClassVar

from seglog_protocol.messages.base import Int64, Message, Request, default


class HelloRequest(Request):
    """The first message of every connection."""

    api: ClassVar[str] = "hello"
    protocol: str
    client: str = default("")


class HelloReply(Message):
    """The broker: its software, api versions as ``{api: [lowest, highest]}``, and limits in bytes and counts.

    ``auto_create_topics``: an append to an unknown topic creates it. ``problems`` are sentences for an operator.
    ``log_dir`` is the absolute path of the log directory on the broker's machine. Of the ``partitions``, ``offline``
    cannot be served, and ``read_only_until_room`` (None: 0) take no records until their disk has room. ``recovery``
    counts the partitions still in recovery after an unclean shutdown; ``read_bytes`` of ``bytes`` have been read,
    including partitions already recovered. None when there is no recovery.
    """

    protocol: str
    broker: str
    apis: dict[str, list[Int64]]
    limits: dict[str, Int64]
    cluster_id: str = default("")
    uptime_ms: Int64 = default(0)
    partitions: Int64 = default(0)
    auto_create_topics: bool = default(False)
    problems: list[str] = default([])
    recovery: dict[str, Int64] | None = None
    log_dir: str = default("")
    offline: Int64 = default(0)
    read_only_until_room: Int64 | None = None


class MetricsRequest(Request):
    """Read the broker's counters since its start."""

    api: ClassVar[str] = "metrics"


class MetricsReply(Message):
    """Numbers by name; docs/OPERATIONS.md says what each counts."""

    metrics: dict[str, int | float]
