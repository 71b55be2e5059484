"""Log directories to be checked, on the forgetful disk."""

from collections.abc import Mapping
from types import MappingProxyType

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.inspect.check.directory import CheckOptions, check_directory
from seglog_broker.inspect.findings import Code, Finding, Remaining, Repaired, Report, Severity, Totals
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.logs import append_one, batch_of_size, opened_directory
from tests.unit.broker.storage.steps import create_topic

DATA = "/data"
PARTITION = f"{DATA}/commits-0"
SMALL = {"segment.bytes": "1024", "index.interval.bytes": "150", "segment.ms": "1000000000"}
"""Ten batches of 100 bytes a segment, an index entry for every second one."""


def configured(keys: Mapping[str, str] = MappingProxyType({})) -> BrokerConfig:
    config, _ = load_config(None, "", {}, [f"log.dir={DATA}", *(f"{key}={value}" for key, value in keys.items())])
    return config


def opened(fs: FileSystem) -> LogDirectory:
    return opened_directory(fs, DATA)


def append(log: PartitionLog, number: int, size: int = 100) -> None:
    """One batch of one record and exactly ``size`` bytes."""
    append_one(log, batch_of_size(size, timestamp=1_700_000_000_000 + number * 7 % 50))


def written(
    batches: int = 23, config: Mapping[str, str] = SMALL, *, clean: bool = True, covered: bool = False
) -> ForgetfulFileSystem:
    """A log directory with one partition; segments with base 0, 10, 20. Without ``covered`` none has a checksum."""
    fs = ForgetfulFileSystem()
    logs = opened(fs)
    create_topic(logs, "commits", 1, dict(config))
    log = logs.logs["commits", 0]
    for number in range(batches):
        append(log, number)
    log.flusher.flush()
    if clean:
        assert logs.close() == []
    else:
        logs.abandon()
    if not covered:
        for name in fs.list_directory(PARTITION):
            if name.endswith(".checksum"):
                fs.unlink(f"{PARTITION}/{name}")
    return fs


def path_of(base: int, suffix: str = ".log") -> str:
    return f"{PARTITION}/{base:020d}{suffix}"


def check(
    fs: FileSystem, *, repair: bool = False, deep: bool = False, keys: Mapping[str, str] = MappingProxyType({})
) -> list[Report]:
    return list(check_directory(fs, DATA, configured(keys), CheckOptions(deep=deep, repair=repair)))


def findings(told: list[Report]) -> list[Finding]:
    return [one for one in told if isinstance(one, Finding)]


def codes(told: list[Report]) -> list[tuple[Severity, Code]]:
    return [(finding.severity, finding.code) for finding in findings(told)]


def faults(told: list[Report]) -> list[Finding]:
    """Findings that make a directory unsound."""
    return [finding for finding in findings(told) if finding.severity != Severity.NOTE]


def left(told: list[Report]) -> list[Finding]:
    return [one.finding for one in told if isinstance(one, Remaining)]


def repairs(told: list[Report]) -> list[Repaired]:
    return [one for one in told if isinstance(one, Repaired)]


def totals(told: list[Report]) -> Totals:
    last = told[-1]
    assert isinstance(last, Totals)
    return last
