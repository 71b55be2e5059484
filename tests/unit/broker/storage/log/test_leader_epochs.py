"""The leader epochs of a log: Kafka's rules, their file, and the end offset of an epoch."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.checkpoint_files import MalformedCheckpointError
from tests.support import each_case

_PATH = "/t-0/leader-epoch-checkpoint"


def _epochs(*entries: tuple[int, int], file: bytes | None = None) -> LeaderEpochs:
    fs = ForgetfulFileSystem()
    fs.load({"/t-0/": b""} if file is None else {_PATH: file})
    epochs = LeaderEpochs(fs, "/t-0")
    epochs.load()
    for entry in entries:
        epochs.assign(*entry)
    return epochs


@each_case(
    ("assigned", "left"),
    [
        ([(2, 9), (2, 10)], [(2, 9)]),
        ([(2, 9), (2, 9)], [(2, 9)]),
        ([(2, 9), (2, 8)], [(2, 8)]),
        ([(2, 9), (3, 9)], [(3, 9)]),
        ([(1, 5), (2, 6), (1, 7)], [(1, 7)]),
        ([(5, 11), (6, 12), (7, 13), (7, 12)], [(5, 11), (7, 12)]),
        ([(5, 11), (6, 12), (8, 3)], [(8, 3)]),
    ],
)
def test_an_assignment_removes_what_contradicts_it_at_the_tail(
    assigned: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    assert _epochs(*assigned).entries == left


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8))))
def test_epochs_and_offsets_always_rise_and_the_last_assignment_holds(assigned: list[tuple[int, int]]) -> None:
    epochs = _epochs(*assigned)
    assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(epochs.entries))
    if assigned:
        assert epochs.latest == assigned[-1][0]
        assert epochs.entries[-1].start_offset <= assigned[-1][1]


@pytest.mark.parametrize("entry", [(-1, 0), (0, -1)])
def test_neither_an_epoch_nor_its_start_is_negative(entry: tuple[int, int]) -> None:
    with pytest.raises(MalformedCheckpointError):
        _epochs(entry)


def test_where_an_epoch_ended() -> None:
    epochs = _epochs((0, 10), (2, 13), (4, 17))
    answers = {epoch: epochs.end_offset_for(epoch, 25) for epoch in range(-1, 6)}
    assert answers == {-1: (-1, -1), 0: (0, 13), 1: (0, 13), 2: (2, 17), 3: (2, 17), 4: (4, 25), 5: (-1, -1)}
    assert _epochs().end_offset_for(0, 25) == (-1, -1)
    assert _epochs((3, 10)).end_offset_for(1, 25) == (1, 10)


def test_which_epoch_an_offset_was_written_under() -> None:
    epochs = _epochs((1, 10), (4, 17))
    assert [epochs.epoch_for(offset) for offset in (9, 10, 16, 17, 99)] == [-1, 1, 1, 4, 4]


@each_case(
    ("entries", "offset", "left"),
    [
        ([(0, 0), (1, 7)], 5, [(0, 5), (1, 7)]),
        ([(0, 0), (1, 5)], 5, [(1, 5)]),
        ([(0, 0), (1, 5)], 9, [(1, 9)]),
        ([(0, 3), (1, 5)], 2, [(0, 3), (1, 5)]),
        ([(0, 0)], 0, [(0, 0)]),
        ([], 5, []),
    ],
)
def test_truncation_from_the_start_keeps_the_epoch_that_covers_it(
    entries: list[tuple[int, int]], offset: int, left: list[tuple[int, int]]
) -> None:
    epochs = _epochs(*entries)
    epochs.truncate_from_start(offset)
    assert epochs.entries == left


@each_case(("offset", "left"), [(8, [(0, 0), (1, 7)]), (7, [(0, 0)]), (1, [(0, 0)]), (0, []), (-1, [(0, 0), (1, 7)])])
def test_truncation_from_the_end_drops_epochs_that_start_there(offset: int, left: list[tuple[int, int]]) -> None:
    epochs = _epochs((0, 0), (1, 7))
    epochs.truncate_from_end(offset)
    assert epochs.entries == left


def test_saving_writes_kafkas_text_and_survives_a_power_cut() -> None:
    epochs = _epochs((0, 0), (3, 17))
    assert epochs.latest == 3
    epochs.save()
    fs = epochs._fs
    assert isinstance(fs, ForgetfulFileSystem)
    assert fs.found_after(POWER_LOSS).snapshot()[_PATH] == b"0\n2\n0 0\n3 17\n"
    again = LeaderEpochs(fs, "/t-0")
    again.load()
    assert again.entries == [(0, 0), (3, 17)]


def test_what_did_not_change_is_not_written_again() -> None:
    epochs = _epochs(file=b"0\n1\n0 0\n")
    fs = epochs._fs
    assert isinstance(fs, ForgetfulFileSystem)
    epochs.assign(0, 5)
    epochs.save()
    assert fs.operations == []
    epochs.assign(1, 5)
    epochs.save()
    assert fs.operations != []


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n0\n"])
def test_an_empty_file_is_no_problem(content: bytes) -> None:
    epochs = _epochs(file=content)
    assert (epochs.entries, epochs.latest, epochs.problem) == ([], -1, None)


@each_case(
    "content", [b"garbage", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0 0 0\n", b"0\n1\nx 0\n", b"0\n1\n-1 0\n", b"\xff"]
)
def test_a_malformed_file_counts_as_empty_is_named_and_replaced(content: bytes) -> None:
    epochs = _epochs(file=content)
    assert epochs.entries == []
    assert epochs.problem is not None
    epochs.save()
    assert epochs._fs.stat(_PATH).size == 4
