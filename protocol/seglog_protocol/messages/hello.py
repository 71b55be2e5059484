"""Who is there, and which requests there are; what the broker counts."""

from collections.abc import Mapping
from typing import ClassVar, Final

from seglog_protocol.messages import (  # noqa: F401 - for their requests
    append,
    carried,
    explain,
    fetch,
    groups,
    offsets,
    samples,
    security,
    topics,
    transactions,
)
from seglog_protocol.messages.base import Int64, Message, Request, default


class HelloRequest(Request):
    """The first message of every connection, behind the authentication that its listener may want."""

    api: ClassVar[str] = "hello"
    protocol: str
    client: str = default("")


class BackupStatus(Message):
    """How far the continuous backup to ``place`` is.

    ``lost_records``, of ``lost_bytes``, would be lost without the broker's disk: what was appended in the last
    ``lost_ms``, that is since the moment ``published_ms`` (None: since the start, in which nothing was published yet),
    which the place has under the id ``published_id``. ``lag_ms`` is what was asked for. ``written_bytes`` were sent to
    the place and ``appended_bytes`` appended since the start. ``reason``: what holds the backup up, None if nothing.
    """

    place: str
    lost_ms: Int64
    lost_records: Int64
    lost_bytes: Int64
    lag_ms: Int64
    written_bytes: Int64
    appended_bytes: Int64
    published_id: str | None = None
    published_ms: Int64 | None = None
    reason: str | None = None


class HelloReply(Message):
    """The broker: its software, api versions as ``{api: [lowest, highest]}``, and limits in bytes and counts.

    ``auto_create_topics``: an append to an unknown topic creates it. ``problems`` are sentences for an operator;
    ``problem_kinds`` the kinds of the first of them: disk-full, disk-fills, disk, damage, transaction, backup,
    or other.
    ``log_dir`` is the absolute path of the log directory on the broker's machine. Of the ``partitions``, ``offline``
    cannot be served, and ``read_only_until_room`` (None: 0) take no records until their disk has room. ``recovery``
    counts the partitions still in recovery after an unclean shutdown; ``read_bytes`` of ``bytes`` have been read,
    including partitions already recovered. None when there is no recovery. The client has authenticated as
    ``principal``; None where nobody has to. ``backup`` is None where there is no continuous one.
    ``awaited`` are the segments, and their bytes, that are still fetched from the backup that it was started from.
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
    principal: str | None = None
    problem_kinds: list[str] | None = None
    backup: BackupStatus | None = None
    awaited: dict[str, Int64] | None = None


class MetricsRequest(Request):
    """Read the broker's counters since its start. Deprecated: SamplesRequest reads families."""

    api: ClassVar[str] = "metrics"


class MetricsReply(Message):
    """Numbers by name; a name is that of a family of docs/METRICS.md without ``seglog_``, or a sum of its samples."""

    metrics: dict[str, int | float]


REQUESTS: Final[Mapping[str, type[Request]]] = {
    request.api: request for request in sorted(Request.__subclasses__(), key=lambda request: request.api)
}

API_VERSIONS: Final = {api: [1, request.version] for api, request in REQUESTS.items()}
