"""Flips every single bit of every file of a small log directory, one at a time.

The directory is from a clean stop, or from a killed broker. Whichever bit is flipped: no record, offset or answer by
offset or by time is wrong; no offset, leader epoch or producer id is given twice; a batch that is sent again is in the
log once; and offsets that cannot be read are reported to their reader, by ``ping`` and by ``seglogd check``. The broker
may refuse to start, with an error that names the file. A check reports every flipped bit except those of
``_may_escape_check``, also one without consequences.

``SEGLOG_FLIPS_EVERY=n`` flips only every n-th bit, from one on that ``SEGLOG_FLIPS_SEED`` chooses, so that runs with
seeds 0 to n-1 flip all of them. Otherwise the minutes and the seed of the soak choose. There are 33,300, and about a
hundred of them take a second on one core.
"""

import os
from collections import Counter
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import pytest
from structlog.testing import capture_logs

from seglog.core.fetcher import FetchOptions
from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.inspect.check.directory import CheckOptions, RefusedError, check_directory
from seglog_broker.inspect.findings import Finding, Severity, Totals
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.server import scrub_of
from seglog_broker.storage.directory.topic_admin import PendingCreation
from seglog_broker.storage.io.filenames import (
    CLEAN_PARTITIONS_FILE,
    CLEAN_SHUTDOWN_FILE,
    CREATION_FILE,
    META_PROPERTIES_FILE,
)
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_broker.storage.segment.segment import FoundTimestamp
from seglog_broker.testing.forgetful import PROCESS_KILL, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.checkpoint_files import CLEANER_CHECKPOINT
from seglog_protocol.errors import LogDirectoryError, SeglogError
from seglog_protocol.messages import AppendResult, CreateTopicRequest
from seglog_protocol.record_batch import parse_header, verify_crc
from seglog_protocol.records import decode_records
from tests.appends import append_batch
from tests.logs import ManualClock, contents, flip_bit
from tests.support import SOME_OR_ALL, soak_seed, soak_step
from tests.unit.simulation.test_damage_met_by_readers import Reader, open_broker

_EVERY: Final = int(os.environ.get("SEGLOG_FLIPS_EVERY") or soak_step())
_SEED: Final = int(os.environ.get("SEGLOG_FLIPS_SEED") or soak_seed() % _EVERY)
_CONFIG: Final = {"segment.ms": 1000, "index.interval.bytes": 0}
_BATCHES: Final = 3  # a segment, of two records each
START: Final = 2
"""The first offset that is left: what came before was deleted, so that there is a checkpoint of it."""

Records = dict[int, tuple[int, bytes | None]]
"""By offset: timestamp and value."""


_LOG_STARTS: Final = "/data/log-start-offset-checkpoint"
_UNMOVED: Final = b"0\n1\nt 0 0\n"
_NAME_IN_UNMOVED: Final = range(4, 7)
_WITHOUT_CONSEQUENCE: Final = (
    META_PROPERTIES_FILE,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_CHECKPOINT,
    CLEAN_PARTITIONS_FILE,
    CREATION_FILE,
)
"""The checkpoint of a log start that was never moved."""


class Written(NamedTuple):
    """The files of a log directory, their content, and the offset from which on a kill may have torn its last batch."""

    files: dict[str, bytes]
    records: Records
    tearable: int
    producer_id: int  # of all batches, the only one that was given
    leader_epoch: int  # of the last batch
    last_batch: bytes  # as its producer sent it

    @property
    def was_killed(self) -> bool:
        """Whether the broker was killed."""
        return self.tearable <= max(self.records)

    @property
    def start(self) -> int:
        """The first offset that remains."""
        return min(self.records)


class Outcome(NamedTuple):
    """The outcome of one flip. ``wrong``: an error or None; ``unnamed``: the reports that did not mention it."""

    kind: str
    wrong: str | None = None
    unnamed: frozenset[str] = frozenset()


@cache
def _broker_config() -> BrokerConfig:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    return config


async def _append(broker: Broker, clock: ManualClock, records: Records, number: int, producer_id: int) -> bytes:
    """Append the batch with this number; return it as it was sent."""
    stamps = [clock.now + 10 * number, clock.now + 10 * number + 3 - number % 3 * 7]
    values = [b"%d" % (2 * number + part) for part in range(2)]
    data = encode_batch(
        [(stamp, None, value, ()) for stamp, value in zip(stamps, values, strict=True)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=2 * number,
    )
    await _send(broker, data)
    records |= {2 * number + part: found for part, found in enumerate(zip(stamps, values, strict=True))}
    return data


async def _send(broker: Broker, data: bytes) -> AppendResult:
    reply = await append_batch(broker, data, ack="disk").wait()
    return reply.partitions[0]


async def _written(*, clean: bool, truncated: bool = True) -> Written:
    """Two closed segments and an active one, three batches in each; after a kill the last two were not yet saved."""
    fs, clock = ForgetfulFileSystem(), ManualClock()
    records: Records = {}
    broker = open_broker(fs, clock)
    await broker.create_topic(CreateTopicRequest("t", 1, dict(_CONFIG)))
    producer_id, last_batch = (await broker.init_producer()).producer_id, b""
    for number in range(3 * _BATCHES):
        if not clean and number == 3 * _BATCHES - 2:
            broker.close()
            broker = open_broker(fs, clock)
        last_batch = await _append(broker, clock, records, number, producer_id)
        if number in (_BATCHES - 1, 2 * _BATCHES - 1):
            clock.now += 2000
    log = broker.partitions["t", 0].log
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12]
    if truncated:
        log.truncate_before(START)
    for path, content in broker.directory.partitions.encoded_checkpoints():
        write_file_atomically(fs, path, content)
    save_clock = broker.clock_trust.prepare_save()
    assert save_clock is not None
    save_clock()
    kept = {offset: record for offset, record in records.items() if offset >= log.log_start_offset}
    known = producer_id, log.leader_epoch, last_batch
    if clean:
        broker.close()
    files = contents(fs if clean else fs.crash(PROCESS_KILL))
    if not truncated:
        files[_LOG_STARTS] = _UNMOVED
    return Written(files, kept, len(records) - 2 * (not clean), *known)


async def _read(broker: Broker, start: int, end: int) -> tuple[Records, set[int]]:
    """The records that a consumer gets if it continues after every error, and the offsets in these errors."""
    reader, stopped_at = Reader(start, end, FetchOptions().partition_bytes), end
    try:
        await reader.read(broker)
    except SeglogError:
        stopped_at = reader.fetcher.states[0].position
    found = {offset: (timestamp, value) for offset, timestamp, value in reader.found}
    return found, reader.told | set(range(stopped_at, end))


def _sought(log: PartitionLog, offset: int) -> Records | None:
    """The batch found for one offset, if a consumer would accept it; else None."""
    try:
        piece = log.read(offset, 1)
        if piece is None:
            return {}
        data = piece.file.pread(piece.size, piece.position)
        piece.release()
        header = parse_header(data)
        if not verify_crc(data, 0, header):
            return None  # who gets it asks again, with ``verify``
        return {record.offset: (record.timestamp, record.value) for record in decode_records(header, data)}
    except SeglogError:
        return None


class CheckSays(NamedTuple):
    """The findings of ``seglogd check``; ``lost`` are the offsets that it reports as damaged or missing."""

    is_sound: bool
    lost: frozenset[int]


def _checked(fs: ForgetfulFileSystem) -> CheckSays:
    try:
        told = list(check_directory(fs, "/data", _broker_config(), CheckOptions()))
    except RefusedError:
        return CheckSays(is_sound=False, lost=frozenset(range(3 * _BATCHES * 2)))
    [totals] = [one for one in told if isinstance(one, Totals)]
    damage = [one for one in told if isinstance(one, Finding) and one.severity == Severity.DAMAGE]
    lost = (range(one.start_offset or 0, one.end_offset or 0) for one in damage)
    return CheckSays(totals.is_sound, frozenset(offset for offsets in lost for offset in offsets))


def _may_escape_check(written: Written, path: str, position: int) -> bool:
    """Whether a check need not report a change of this bit, because it does no harm.

    Ids and comments are compared with nothing. Of the marker of a clean stop only the existence matters. Checkpoints
    are out of date while a broker runs. Nothing confirms the contents of the last two files, and a wrong one only
    causes more work. A line with offset 0 says nothing, so its name may change. A file about partitions that were being
    created has no effect if all of them exist.
    """
    if path == _LOG_STARTS and written.start == 0 and position in _NAME_IN_UNMOVED:
        return True
    if path.endswith(_WITHOUT_CONSEQUENCE):
        return True
    return written.was_killed and path.endswith("-checkpoint")


def _named_by_ping(broker: Broker) -> bool:
    return any("t-0" in problem for problem in broker.hello().problems)


async def _outcome(written: Written, path: str, position: int, bit: int) -> Outcome:
    """The outcome of one flip. A third of the flips each are first read by offset, by time, and from the start."""
    fs = ForgetfulFileSystem()
    fs.load(written.files)
    flip_bit(fs, path, position, bit)
    check = _checked(fs)
    not_by_check = frozenset({"check"} if check.is_sound else ())
    try:
        broker = open_broker(fs)
    except LogDirectoryError as error:
        is_named = path in error.message
        wrong = None if is_named else f"refused without naming the file: {error.message}"
        return Outcome("refused", wrong, not_by_check)
    if ("t", 0) not in broker.partitions:
        outcome = Outcome("offline", None, not_by_check if _named_by_ping(broker) else not_by_check | {"ping"})
    else:
        outcome = await _served(broker, written, check, first_look=(position + bit) % 3)
    if path.endswith(PARTITION_STATE_FILE):  # nothing is lost with it, and it is named all the same
        is_named = any(PARTITION_STATE_FILE in problem for problem in broker.hello().problems)
        outcome = outcome._replace(unnamed=outcome.unnamed if is_named else outcome.unnamed | {"ping"})
    with suppress(SeglogError):
        if (await broker.init_producer()).producer_id <= written.producer_id:
            outcome = outcome._replace(wrong="a producer id was given twice")
    problems = broker.directory.close()
    bugs = [problem for problem in problems if "bug" in problem]
    if not _may_escape_check(written, path, position) and outcome.kind != "torn tail":
        outcome = outcome._replace(unnamed=outcome.unnamed | not_by_check)
    return outcome._replace(wrong=bugs[0]) if bugs else outcome


async def _served(broker: Broker, written: Written, check: CheckSays, *, first_look: int) -> Outcome:
    records, end = written.records, max(written.records) + 1
    log = broker.partitions["t", 0].log
    was_torn = log.log_end_offset < end
    if not (written.tearable <= log.log_end_offset <= end):
        return Outcome("wrong", f"the log ends at {log.log_end_offset}")
    if log.leader_epoch < written.leader_epoch + written.was_killed:  # after a kill a start takes a new one
        return Outcome("wrong", f"leader epoch {log.leader_epoch} is taken, {written.leader_epoch} was")
    times: dict[int, FoundTimestamp | None] = {}
    sought: dict[int, Records | None] = {}
    found, told = Records(), set[int]()
    for look in range(first_look, first_look + 3):
        if look % 3 == 0:
            for moment in sorted({stamp + change for stamp, _ in records.values() for change in (0, 1)}):
                try:
                    times[moment] = log.find_timestamp(moment)
                except SeglogError as error:
                    return Outcome("wrong", f"time {moment}: {error!r}")
        elif look % 3 == 1:
            sought = {offset: _sought(log, offset) for offset in sorted(records, key=lambda offset: offset * 7 % end)}
        else:
            found, told = await _read(broker, written.start, log.log_end_offset)
    for offset, read in sought.items():
        if read is not None and (read.items() - records.items() or (offset in found and offset not in read)):
            return Outcome("wrong", f"offset {offset}: {read}")
    wrong = {offset: record for offset, record in found.items() if records.get(offset) != record}
    if wrong:
        return Outcome("wrong", f"records {wrong}")
    lost = records.keys() - found.keys() - (set(range(written.tearable, end)) if was_torn else set())
    for moment, answer in times.items():
        # The first record of that time, or, where it cannot be read, one of those that are named or the first behind.
        sure = next((offset for offset in records if offset in found and records[offset][0] >= moment), end)
        first = next((offset for offset in records if records[offset][0] >= moment), end)
        said = end if answer is None else answer.offset
        if not first <= said <= sure or (said not in {first, sure} and said in found):
            return Outcome("wrong", f"time {moment}: {said}, not {first} or {sure}")
    await scrub_of(broker).scrub_all(TaskBoundary("scrub"))
    unnamed = set[str]()
    if lost - told:
        unnamed.add("reader")
    if lost and not _named_by_ping(broker):
        unnamed.add("ping")
    if lost - check.lost:
        unnamed.add("check")
    given = []
    with suppress(SeglogError):
        for data in (written.last_batch, encode_batch([(broker.clock.now_ms(), None, b"next", ())])):
            result = await _send(broker, data)
            if result.error is None and not result.duplicate:
                given.append(result.base_offset or 0)
            elif result.error is None and result.base_offset != end - 2:
                return Outcome("wrong", f"the last batch is said to be at {result.base_offset}")
            if data is written.last_batch and given and end - 2 in found:
                return Outcome("wrong", f"the last batch is there twice, at {end - 2} and at {given[0]}")
    if given and (not written.tearable <= given[0] <= end or len(set(given)) < len(given)):
        return Outcome("wrong", f"offsets {given} were given")
    if was_torn:
        return Outcome("torn tail", None, frozenset(unnamed))
    return Outcome("left out, named" if lost else "nothing lost", None, frozenset(unnamed))


def _kind_of(path: str) -> str:
    """The kind of a file, for one row of the table."""
    name = path.removeprefix("/data/")
    stem, _, suffix = name.rpartition(".")
    if stem.rpartition("/")[2].isdigit():
        closed = "active" if stem.endswith("12") else "closed"
        return f"*.{suffix} ({closed})" if suffix in {"log", "index", "timeindex"} else f"*.{suffix}"
    return name


async def _run(
    written: Written, *, every: int, seed: int, only: str = ""
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Kind of file -> number of each outcome, and the errors; ``only``: for one file."""
    counts = Counter[tuple[str, str]]()
    failures = []
    number = 0
    for path, data in sorted(written.files.items()):
        if only not in path:
            continue
        for position, bit in ((position, bit) for position in range(len(data)) for bit in range(8)):
            number += 1
            if number % every != seed % every:
                continue
            try:
                with capture_logs():
                    outcome = await _outcome(written, path, position, bit)
            except Exception as error:  # noqa: BLE001 - whatever it is, no bit may cause it
                outcome = Outcome("wrong", repr(error))
            kind = _kind_of(path)
            counts[kind, outcome.kind if outcome.wrong is None else "wrong"] += 1
            if outcome.wrong is not None:
                failures.append(f"{path}, byte {position}, bit {bit}: {outcome.wrong}")
            for who in outcome.unnamed:
                counts[kind, f"not named by {who}"] += 1
                failures.append(f"{path}, byte {position}, bit {bit}: not named by {who}")
    return counts, failures


def _table(counts: Counter[tuple[str, str]]) -> str:
    return "\n".join(f"{kind:45} {outcome:25} {count:6}" for (kind, outcome), count in sorted(counts.items()))


@pytest.mark.soak
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_every_flipped_bit_of_a_log_directory_is_harmless_or_reported(clean: bool) -> None:
    counts, failures = await _run(await _written(clean=clean), every=_EVERY, seed=_SEED)
    print(
        f"\n{sum(n for (_, kind), n in counts.items() if 'not named' not in kind)} flips, every {_EVERY}, seed {_SEED}."
    )
    print(_table(counts))
    assert not failures, "\n".join(failures[:50])


@pytest.mark.parametrize(
    ("file", "clean"),
    [
        (CLEANER_CHECKPOINT, True),
        (CLEANER_CHECKPOINT, False),
        (CLEAN_PARTITIONS_FILE, True),
        pytest.param(CREATION_FILE, True, marks=pytest.mark.soak),
        pytest.param(CREATION_FILE, False, marks=pytest.mark.soak),
    ],
)
@SOME_OR_ALL
async def test_no_bit_of_a_file_that_is_not_always_there_does_harm(file: str, clean: bool, step: int) -> None:
    """Where compaction had nothing to drop, another partition was not closed cleanly, one had just been created."""
    written = await _written(clean=clean)
    if file == CREATION_FILE:
        fs = ForgetfulFileSystem()
        fs.load(written.files)
        PendingCreation({open_broker(fs).directory.registry.topics["t"].id: 0}).save(fs, "/data")
        written.files[f"/data/{file}"] = contents(fs)[f"/data/{file}"]
    else:
        written.files[f"/data/{file}"] = b"0\n1\nt 0 %d\n" % (6 if file == CLEANER_CHECKPOINT else 18)
    if file == CLEAN_PARTITIONS_FILE:
        del written.files[f"/data/{CLEAN_SHUTDOWN_FILE}"]
    counts, failures = await _run(written, every=step, seed=0, only=file)
    assert not failures, "\n".join(failures[:50])
    assert counts.keys() == {(file, "nothing lost")}


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("truncated", [True, False], ids=["moved", "never moved"])
@SOME_OR_ALL
async def test_no_bit_of_the_log_start_checkpoint_does_harm(clean: bool, truncated: bool, step: int) -> None:
    """None hides a record or brings one back."""
    written = await _written(clean=clean, truncated=truncated)
    _, failures = await _run(written, every=step, seed=0, only=_LOG_STARTS)
    assert not failures, "\n".join(failures[:50])
