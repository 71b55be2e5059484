"""Facts of logs that tests write themselves."""

from collections.abc import Sequence
from typing import TypeVar

from seglog_broker.config import TopicConfig
from seglog_broker.inspect.dump.kinds import DumpOptions, facts_of
from seglog_broker.inspect.facts import Damage, Fact, Note
from seglog_broker.storage.io.filesystem import FileSystem, write_all
from tests.logs import DIRECTORY, LogOnDisk, batch_of_size

FactT = TypeVar("FactT", bound=Fact)

LOG = f"{DIRECTORY}/00000000000000000000.log"
OFFSET_INDEX = f"{DIRECTORY}/00000000000000000000.index"
TIME_INDEX = f"{DIRECTORY}/00000000000000000000.timeindex"


def small_log(batches: int = 10, **config: int) -> LogOnDisk:
    """A cleanly stopped log of one-record batches of 100 bytes, one a second; every second one has an index entry."""
    disk = LogOnDisk(TopicConfig(**({"index_interval_bytes": 150} | config)))  # type: ignore[arg-type] # all are int
    for number in range(batches):
        disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000 + 1000 * number))
    disk.log.close()
    return disk


def facts(fs: FileSystem, path: str, **options: bool) -> list[Fact]:
    return list(facts_of(fs, path, DumpOptions(**options)))


def only(found: Sequence[Fact], kind: type[FactT]) -> list[FactT]:
    return [fact for fact in found if isinstance(fact, kind)]


def damage(found: Sequence[Fact]) -> list[tuple[int | None, int | None, str]]:
    """Position and reason of all damage."""
    return [(fact.position, fact.end_position, fact.reason) for fact in only(found, Damage)]


def notes(found: Sequence[Fact]) -> list[str]:
    return [fact.text for fact in only(found, Note)]


def overwrite(fs: FileSystem, path: str, position: int, content: bytes) -> None:
    file = fs.open(path, writable=True)
    try:
        write_all(file, [content], position)
    finally:
        file.close()


def create(fs: FileSystem, path: str, content: bytes = b"") -> None:
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        write_all(file, [content], 0)
    finally:
        file.close()
