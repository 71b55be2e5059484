"""Producer ids: none is given twice, whatever happens to the process, the disk or the file."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.producers.producer_ids import BLOCK_SIZE, ProducerIds
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, Fault, ForgetfulFileSystem
from seglog_protocol.errors import LogDirectoryError, PolicyViolationError
from tests.support import each_case

PATH = "/seglog-producer-ids.json"


def loaded(fs: ForgetfulFileSystem, highest_seen: int = -1) -> ProducerIds:
    return ProducerIds(fs, PATH, highest_seen=highest_seen)


def given_id(ids: ProducerIds) -> int:
    taken = ids.take()
    if taken is None:
        block = ids.next_block()
        block.run()
        ids.add(block)
        taken = ids.take()
    assert taken is not None
    return taken


def test_ids_rise_from_0_and_one_write_is_good_for_a_block() -> None:
    fs = ForgetfulFileSystem()
    ids = loaded(fs)
    assert [given_id(ids) for _ in range(BLOCK_SIZE + 2)] == list(range(BLOCK_SIZE + 2))
    assert [operation.name for operation in fs.operations].count("rename") == 2
    assert given_id(loaded(fs)) == 2 * BLOCK_SIZE, "what is left of a block is not given after a restart"


@given(st.lists(st.one_of(st.just("id"), st.integers(0, 3)), max_size=40), st.integers(0, 2**32))
def test_no_crash_brings_an_id_back(steps: list[str | int], seed: int) -> None:
    fs = ForgetfulFileSystem()
    ids, seen = loaded(fs), set[int]()
    for step in steps:
        if step == "id":
            taken = given_id(ids)
            assert taken not in seen
            seen.add(taken)
        else:
            fs = fs.crash((PROCESS_KILL, POWER_LOSS, RANDOM(seed), PROCESS_KILL)[int(step)])
            ids = loaded(fs)


@each_case("operation", ["open", "pwritev", "fdatasync", "rename", "sync_directory"])
def test_a_block_that_could_not_be_written_gives_no_id(operation: str) -> None:
    fs = ForgetfulFileSystem()
    ids = loaded(fs)
    fs.inject(Fault(operation, error=errno.ENOSPC))
    block = ids.next_block()
    with pytest.raises(OSError):
        block.run()
    assert ids.take() is None
    assert given_id(ids) == 0


def test_ids_begin_above_those_in_the_logs_of_an_adopted_directory() -> None:
    fs = ForgetfulFileSystem()
    assert given_id(loaded(fs, highest_seen=4_711)) == 4_712
    assert given_id(loaded(fs, highest_seen=3)) == 5_712


@each_case("content", [b"", b"{}", b"[]", b'{"version": 2, "next": 0}', b'{"version": 1, "next": "x"}'])
def test_a_file_that_makes_no_sense_is_refused_by_name(content: bytes) -> None:
    fs = ForgetfulFileSystem()
    fs.load({PATH: content})
    with pytest.raises(LogDirectoryError, match="seglog-producer-ids"):
        loaded(fs)


def test_there_is_an_end_to_ids() -> None:
    with pytest.raises(PolicyViolationError):
        loaded(ForgetfulFileSystem(), highest_seen=2**63 - 2).next_block()


@given(st.lists(st.one_of(st.none(), st.integers(0, 3 * BLOCK_SIZE)), max_size=20))
def test_an_id_that_turns_up_late_is_never_given_again(steps: list[int | None]) -> None:
    """None: an id is given; a number: it was found in a log that was recovered after the start."""
    ids = loaded(ForgetfulFileSystem())
    used: set[int] = set()
    for step in steps:
        if step is None:
            one = given_id(ids)
            assert one not in used
            used.add(one)
        else:
            ids.note_seen(step)
            used.add(step)


def test_a_file_speaks_of_ids_in_logs_that_nobody_has_read() -> None:
    fs = ForgetfulFileSystem()
    ids = loaded(fs)
    assert not ids.is_recorded
    given_id(ids)
    assert loaded(fs).is_recorded
