"""The net under whatever stops in order: a check of what it left finds nothing but notes."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from seglog_broker.config import BrokerConfig, TopicConfig, load_config
from seglog_broker.inspect.check.directory import CheckOptions, check_directory
from seglog_broker.inspect.check.partition import check_partition
from seglog_broker.inspect.check.plan import PartitionContext
from seglog_broker.inspect.findings import Finding, Severity
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem


def assert_directory_sound(fs: FileSystem, path: str, config: BrokerConfig | None = None) -> None:
    """Check a log directory that no broker has open."""
    config = config or load_config(None, "", {}, [f"log.dir={path}"])[0]
    told = check_directory(fs, path, config, CheckOptions())
    faults = [one for one in told if isinstance(one, Finding) and one.severity != Severity.NOTE]
    assert faults == [], f"{path} was stopped cleanly, and a check finds {faults}"


def assert_left_sound(directory: Path, arguments: Sequence[str] = ()) -> None:
    """Check what a `seglogd` left that was started with ``arguments``."""
    wanted = [value for name, value in pairwise(arguments) if name == "--set"]
    config, _ = load_config(None, "", {}, [f"log.dir={directory}", *wanted])
    assert_directory_sound(PosixFileSystem(), str(directory), config)


def assert_log_sound(fs: FileSystem, directory: str, config: TopicConfig, *, log_start: int, log_end: int) -> None:
    """Check one partition whose log was closed."""
    context = PartitionContext(
        recovery_point=log_end,
        log_start=log_start,
        index_interval=config.index_interval_bytes,
        index_bytes_max=config.segment_index_bytes,
    )
    faults = check_partition(fs, directory, context).faults
    assert faults == [], f"{directory} was closed cleanly, and a check finds {faults}"
