"""What a broker tells, judged: its problems, versions, clock, limits, free space, configuration and share groups."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog import __version__
from seglog.cli.checkups.model import Check, ok, problem, unknown, warning
from seglog.cli.figures import bytes_text, count_text, loss_of, seconds_text
from seglog.core.errors import count_of, duration_of
from seglog.core.security import is_loopback
from seglog_protocol.errors import SeglogError, UnsupportedApiError
from seglog_protocol.messages import MetricBuckets

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog_protocol.messages import DescribeBrokerReply, HelloReply, MetricFamily

OFFSET_SECONDS_WARNED: Final = 1.0
OFFSET_SECONDS_WRONG: Final = 60.0
"""Of two clocks. Records have their producers' times, which ``retention.ms`` and ``--from TIME`` are compared with."""

OPEN_FILES_MIN: Final = 4_096
"""Below it there is room for few connections beside the files of segments: 1,024 are the default of many shells."""

FULL_SECONDS_WARNED: Final = 24 * 3600.0
FREE_SHARE_WARNED: Final = 0.1
FREE_INODES_WARNED: Final = 10_000
"""Free space that is little, by when it will be gone, by its share, and by the files that it is good for."""

QUEUES_ASKED_MAX: Final = 20
"""Partitions of share groups about which the broker is asked: those in which records were delivered most often."""

_OF_QUEUES: Final = tuple(f"seglog_share_{name}" for name in ("records_waiting", "records_in_flight", "deliveries_max"))

_RUNBOOK: Final = "docs/OPERATIONS.md"
SECTIONS: Final = {
    "disk-full": "When the disk is full",
    "disk-fills": "The disk fills up",
    "disk": "The disk is slow or fails",
    "damage": "Damage is found",
    "transaction": "A transaction holds readers up",
    "dead-letter": "A queue stands still",
    "backup": "The backup is behind",
}
"""Sections of the runbook, by the kind of a problem; of others it says as a whole what to do."""


class Told(NamedTuple):
    """What a broker has told, to whom, and when."""

    server: str
    principal: str
    tls_version: str
    """Empty without TLS."""
    hello: "HelloReply"
    described: "DescribeBrokerReply | None"
    """None of a broker that does not know the request."""
    disk: Mapping[str, float]
    """Those of its metrics that are about the disk, by the end of their names."""
    offset_seconds: float
    """How far its clock is ahead of this machine's."""
    rtt_seconds: float
    """How long it took to tell: the offset is known to half of that."""
    queues: Sequence[Check] = ()


def ask(client: "Client") -> Told:
    """Ask a broker for all that is judged."""
    told = Told(client.server, client.principal, client.tls_version, client.ping(), None, {}, 0.0, 0.0)
    before = time.time()
    try:
        described = client.describe_broker()
        after = time.time()
        families = client.samples(DISK_FAMILIES)
    except UnsupportedApiError:
        return told
    offset = described.now_ms / 1000 - (before + after) / 2
    told = told._replace(described=described, disk=disk_of(families), offset_seconds=offset, rtt_seconds=after - before)
    return told._replace(queues=list(queue_checks(client)))


_DISK: Final = "seglog_disk_"
DISK_FAMILIES: Final = tuple(
    f"{_DISK}{name}" for name in ("size_bytes", "free_bytes", "free_inodes", "full", "full_in_seconds")
)


def disk_of(families: Sequence["MetricFamily"]) -> dict[str, float]:
    """The values of DISK_FAMILIES, by the end of their names."""
    found = {family.name.removeprefix(_DISK): family.value() for family in families}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def told_checks(told: Told) -> Iterator[Check]:
    """A line or more for each thing that the broker tells."""
    yield from _health(told.server, told.hello)
    yield _account(told)
    yield from _versions(told)
    if told.described is None:
        yield unknown(
            "configuration",
            f"{told.hello.broker} does not tell its configuration, its limits and its clock",
            "update it: this client is newer",
        )
        return
    yield _clock(told)
    yield from _limits(told.described)
    yield from _free_space(told)
    yield from _configuration(told.described)
    yield from told.queues


def _health(server: str, hello: "HelloReply") -> Iterator[Check]:
    partitions = count_of(hello.partitions, "partition")
    yield ok("broker", f"{hello.broker} at {server}, up {duration_of(hello.uptime_ms)}, {partitions}")
    for sentence, kind in zip(hello.problems, chain(hello.problem_kinds or (), repeat("")), strict=False):
        yield problem("broker", sentence, _in_runbook(kind))
    if hello.backup is not None and "backup" not in (hello.problem_kinds or ()):
        yield ok("backup", loss_of(hello.backup))
    if hello.recovery:
        left = count_of(hello.recovery.get("partitions", 0), "partition")
        yield warning(
            "recovery", f"{left} still to recover after a stop that was not clean", "wait; ping shows progress"
        )


def _in_runbook(kind: str) -> str:
    return f"see '{SECTIONS.get(kind, 'Situations')}' in {_RUNBOOK}"


def _account(told: Told) -> Check:
    who = told.principal or "User:ANONYMOUS"
    host = told.server.rpartition(":")[0].strip("[]")
    if told.tls_version:
        return ok("connection", f"as {who}, {told.tls_version}")
    if is_loopback(host):
        return ok("connection", f"as {who}, without TLS, on this machine")
    return warning(
        "connection",
        f"as {who}, without TLS to {host}: what is read and written can be read on the network",
        "listen with SASL_SSL (seglog.listen), or be sure of the network",
    )


def _versions(told: Told) -> Iterator[Check]:
    broker = told.hello.broker.rpartition("/")[2]
    if broker == __version__:
        yield ok("versions", f"client and broker are {broker}")
    else:
        yield warning(
            "versions",
            f"the client is {__version__}, the broker {broker}",
            "both work together; update the older one before you look for a bug",
        )
    if told.described is not None:
        found = told.described.versions
        yield ok("runs on", f"Python {found.get('python')}, {found.get('build')}, {found.get('kernel')}")


def _clock(told: Told) -> Check:
    offset, certain = abs(told.offset_seconds), told.rtt_seconds / 2
    apart = max(0.0, offset - certain)
    where = "ahead of" if told.offset_seconds > 0 else "behind"
    if apart <= OFFSET_SECONDS_WARNED:
        return ok("clock", "the broker's clock is this machine's, to a second")
    found = f"the broker's clock is {seconds_text(offset)} {where} this machine's"
    remedy = "synchronize both, as by chrony or systemd-timesyncd: retention deletes records by the broker's clock"
    return (warning if apart <= OFFSET_SECONDS_WRONG else problem)("clock", found, remedy)


def _limits(described: "DescribeBrokerReply") -> Iterator[Check]:
    files = described.limits.get("open_files", 0)
    possible = described.limits.get("connections", 0)
    entry = described.config.get("seglog.connections.max")
    wanted = int(entry.value) if entry is not None else possible
    granted = f"{files:,} open files" if files else "any number of open files"
    remedy = "raise the limit where the broker is started: LimitNOFILE=65536 in its unit, ulimit -n, or --ulimit nofile"
    if possible < wanted:
        found = (
            f"{granted} are granted, so {possible:,} connections fit in place of {wanted:,} (seglog.connections.max)"
        )
        yield warning("limits", found, remedy)
    elif files and files < OPEN_FILES_MIN:
        yield warning("limits", f"{granted} are granted", remedy)
    else:
        yield ok("limits", f"{granted}, {possible:,} connections")
    memory, processors = described.limits.get("memory_bytes", 0), described.limits.get("processors", 0)
    yield ok("machine", f"{count_of(processors, 'processor')}, {memory / 2**30:,.1f} GiB of memory")


def _free_space(told: Told) -> Iterator[Check]:
    free, size, inodes = (told.disk.get(name) for name in ("free_bytes", "size_bytes", "free_inodes"))
    until = told.disk.get("full_in_seconds", math.inf)
    if free is None:
        yield unknown("free space", "the broker does not tell it")
        return
    of = f" of {bytes_text(size)}" if size else ""
    counted = f", {count_text(inodes)} inodes" if inodes is not None and inodes >= 0 else ""
    found = f"{bytes_text(free)}{of} are free{counted}"
    remedy = "make room, shorten retention.ms, or give log.dir a larger disk"
    if told.disk.get("full"):
        yield problem("free space", f"{found}, and appends are refused", f"{remedy}: {_in_runbook('disk-full')}")
    elif until < FULL_SECONDS_WARNED:
        yield warning("free space", f"{found}, for {seconds_text(until)} if it shrinks as in the last hour", remedy)
    elif size and free < FREE_SHARE_WARNED * size:
        yield warning("free space", found, remedy)
    elif inodes is not None and 0 <= inodes < FREE_INODES_WARNED:
        yield warning("free space", found, "each segment takes some inodes: larger segments, or another file system")
    else:
        yield ok("free space", found)


def _configuration(described: "DescribeBrokerReply") -> Iterator[Check]:
    written = {key: entry for key, entry in described.config.items() if entry.origin != "default"}
    places = sorted({e.where.partition(": ")[0] if e.origin == "file" else e.origin for e in written.values()})
    yield ok(
        "configuration",
        f"{count_of(len(written), 'key')} not at the default"
        + (f", from {', '.join(places)}" if places else "")
        + "; all of them: seglog support-bundle",
    )
    for sentence in described.warnings:
        yield warning(
            "configuration", sentence, "see the key in docs/CONFIG.md; `seglogd --check-config` says the same"
        )
    idle = sorted(key for key, entry in written.items() if entry.shortfall is not None)
    if idle:
        few = f"{', '.join(idle[:5])}{f' and {len(idle) - 5} more' if len(idle) > 5 else ''}"
        yield warning("configuration", f"set, and without effect: {few}", "take them out; docs/CONFIG.md says why")


# --- Share groups -----------------------------------------------------------------------------------------------------


def queue_checks(client: "Client") -> Iterator[Check]:
    """A line for all share groups, and one for each thing that is wrong; nothing without share groups."""
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for family in client.samples(_OF_QUEUES):
        for sample in family.samples:
            assert not isinstance(sample.value, MetricBuckets)
            values.setdefault(family.name, {})[tuple(sample.labels)] = sample.value
    waiting, in_flight, deliveries = (values.get(name, {}) for name in _OF_QUEUES)
    places = sorted(in_flight, key=lambda place: (-deliveries.get(place, 0), -waiting.get(place, 0)))
    if places:
        records = (
            f"{count_of(round(sum(waiting.values())), 'record')} waiting, {sum(in_flight.values()):,.0f} in flight"
        )
        yield ok("queues", f"{count_of(len({group for group, _, _ in places}), 'share group')}: {records}")
    for group, topic, partition in places[:QUEUES_ASKED_MAX]:
        with suppress(SeglogError):  # it is loading, or gone
            told = client.explain.delivery(topic, int(partition), group).delivery
            if told is not None:
                yield from (warning("queues", advice.found, advice.remedy) for advice in told.warnings)
    if len(places) > QUEUES_ASKED_MAX:
        yield unknown(
            "queues", f"{len(places) - QUEUES_ASKED_MAX:,} more partitions of share groups were not looked at"
        )
