"""Each check of what members of groups tell finds what it is for, and nothing in a log that is in order."""

import random
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from tests.members import checks
from tests.members.lines import AnyLine, Assigned, Committed, Described, Handled, Looked, Refused, Revoked, Told
from tests.members.schedule import Step, rounds_of
from tests.support import each_case, some_seeds

WATCHER = "watcher"
ENDS = {0: 3, 1: 2}


def handled(partition: int, *offsets: int, group: str = "red") -> list[AnyLine]:
    return [Handled(group, "a", partition, offset) for offset in offsets]


def committed(begun: float, ended: float, offset: int, *, who: str = "a", partition: int = 0) -> Committed:
    return Committed("red", who, begun, ended, who, 1 if who == "a" else 3, {partition: offset})


def looked(begun: float, ended: float, offsets: dict[int, int]) -> Looked:
    return Looked("red", WATCHER, begun, ended, offsets)


def described(
    generation: int, owners: dict[int, list[str]], *, state: str = "Stable", at: float = 0, group: str = "red"
) -> Described:
    return Described(
        group, WATCHER, at, at + 0.5, state, generation, sorted(chain.from_iterable(owners.values())), owners
    )


def assigned(who: str, generation: int | None, *partitions: int, group: str = "red") -> Assigned:
    return Assigned(group, who, 0, who, generation, list(partitions))


GOOD: Sequence[AnyLine] = [
    assigned("a", 1, 0, 1),
    described(1, {0: ["a"], 1: ["a"]}, at=1),
    *handled(0, 0, 1, 2),
    committed(2, 3, 2),
    looked(3, 4, {0: 2}),
    Refused("red", "a", 4, 5, "RebalanceInProgressError"),
    Revoked("red", "a", 5, [0, 1], False),
    assigned("a", 2, 0),
    assigned("b", 2, 1),
    described(2, {0: ["a"], 1: ["b"]}, at=6),
    committed(6, 7, 3),
    *handled(1, 1, 0, 1),
    looked(8, 9, {0: 3}),
]


def test_a_log_in_order_has_nothing_wrong() -> None:
    assert checks.wrongs(GOOD, ENDS, 0, 10) == []
    assert checks.looks(GOOD, "red") == 2
    assert checks.without_generation(GOOD) == []


def test_a_record_that_one_group_never_handled_is_told() -> None:
    other = handled(0, 0, 2, group="blue") + handled(1, 0, 1, group="blue")
    assert checks.not_handled([*GOOD, *other], "red", ENDS) == []
    assert checks.not_handled([*GOOD, *other], "blue", ENDS) == ["blue never handled 0:1"]
    assert checks.not_handled([], "red", {0: 1}) == ["red never handled 0:0"]
    assert checks.wrongs([*GOOD, *other], ENDS, 0, 10) == ["blue never handled 0:1"]


@pytest.mark.parametrize(
    "later",
    [committed(10, 11, 2, who="b"), looked(10, 11, {0: 2}), looked(10, 11, {1: 5})],
    ids=["a commit", "a look", "nothing"],
)
def test_a_committed_offset_that_goes_back_is_told(later: AnyLine) -> None:
    (wrong,) = checks.gone_back([*GOOD, later])
    assert "red, partition 0" in wrong
    assert "offset=3" in wrong
    assert checks.gone_back([later, *GOOD]) == [wrong]  # in whatever order the files are read
    assert checks.wrongs([*GOOD, later], ENDS, 0, 20) == [wrong]


@each_case(
    "later",
    [
        committed(10, 11, 3, who="b"),  # the same again
        committed(6.5, 11, 2, who="b"),  # it may have come before the 3
        committed(10, 11, 0, who="b", partition=1),
        looked(6.9, 11, {0: 2}),
    ],
    ids=["the same", "overlaps", "another partition", "a look that overlaps"],
)
def test_what_need_not_have_gone_back_is_not_told(later: AnyLine) -> None:
    assert checks.gone_back([*GOOD[:-1], later]) == []


def test_all_that_ended_before_counts_and_not_only_the_last() -> None:
    lines = [committed(0, 1, 9), committed(0, 2, 5), committed(0, 30, 7), committed(3, 4, 8)]
    (wrong,) = checks.gone_back(lines)
    assert "offset=9" in wrong
    assert "offset=8" in wrong


def test_offsets_of_another_group_are_others() -> None:
    assert checks.gone_back([*GOOD, Looked("blue", WATCHER, 10, 11, {0: 1})]) == []


@each_case(
    "line",
    [
        described(2, {0: ["b"]}),
        described(2, {1: ["b", "a"]}),
        described(2, {0: ["c"]}, state="PreparingRebalance"),
        assigned("c", 2, 1),
        Committed("red", "c", 9, 9.5, "c", 2, {1: 1}),
    ],
    ids=["the broker later", "the broker at once", "in a rebalance", "a member", "a commit"],
)
def test_two_owners_in_one_generation_are_told(line: AnyLine) -> None:
    (wrong,) = checks.owned_twice([*GOOD, line])
    assert "red, generation 2, partition" in wrong
    assert checks.wrongs([*GOOD, line], ENDS, 0, 10) == [wrong]


@each_case(
    "line",
    [
        assigned("c", 3, 0, 1),
        assigned("c", None, 0, 1),
        assigned("c", 2, 0, 1, group="blue"),
        assigned("c", 2),
        described(2, {0: ["b"]}, state="CompletingRebalance"),  # those of generation 1
    ],
    ids=["the next", "unknown", "another group", "nothing", "not assigned yet"],
)
def test_owners_of_other_generations_are_none_too_many(line: AnyLine) -> None:
    assert checks.owned_twice([*GOOD, line]) == []


def test_a_generation_that_goes_back_is_told() -> None:
    lines = [described(5, {}), described(4, {}, group="blue", at=1), described(5, {}, at=1), described(4, {}, at=2)]
    assert checks.generations_gone_back(lines) == ["red: generation 5, and then 4"]
    assert checks.wrongs(lines, {}, 0, 10) == ["red: generation 5, and then 4"]


def test_looks_are_counted_where_both_were_seen() -> None:
    assert checks.looks(GOOD, "blue") == 0
    assert checks.looks([described(1, {0: ["a"]}), looked(1, 2, {})], "red") == 0
    assert checks.looks([described(1, {}), looked(1, 2, {0: 1})], "red") == 0


@pytest.mark.parametrize("line", [committed(2, 1, 1), committed(-1, 1, 1), looked(9, 11, {0: 3})])
def test_a_process_with_another_clock_is_told(line: AnyLine) -> None:
    assert checks.off_the_clock([*GOOD, line], 0, 10) == [str(line)]


def test_a_member_that_never_tells_its_generation_is_named() -> None:
    mute = Committed("red", "m", 9, 9.5, "m", None, {1: 2})
    assert checks.without_generation([*GOOD, mute]) == ["m"]
    assert checks.without_generation([*GOOD, mute, Committed("red", "m", 9, 9.5, "m", 2, {1: 2})]) == []


def test_lines_are_read_as_they_come_but_for_one_that_a_kill_cut_off(tmp_path: Path) -> None:
    told = Told(tmp_path)
    assert told.read() == []
    path = tmp_path / "a.jsonl"
    first = '{"told": "handled", "group": "red", "who": "a", "partition": 1, "offset": 2}\n'
    second = (
        '{"told": "committed", "group": "red", "who": "a", "begun": 1, "ended": 2.5, "member": "m",'
        ' "generation": null, "offsets": {"3": 4}}\n'
    )
    path.write_text(first + second[:20])
    assert told.read() == [Handled("red", "a", 1, 2)]
    assert told.read() == []
    path.write_text(first + second + '{"told"')
    assert told.read() == [Committed("red", "a", 1, 2.5, "m", None, {3: 4})]
    assert len(told.lines) == 2


def test_a_seed_makes_the_same_faults_again() -> None:
    def made(seed: int) -> list[list[Step]]:
        return rounds_of(random.Random(seed), ("red", "blue"), members=4, rounds=10)

    assert made(7) == made(7)
    assert made(7) != made(8)


@each_case("seed", some_seeds(20, quick=6))
def test_every_round_kills_the_broker_and_all_members_have_their_turns(seed: int) -> None:
    made = rounds_of(random.Random(seed), ("red", "blue"), members=4, rounds=10)
    assert [[step.do for step in steps].count("kill broker") for steps in made] == [1] * 10
    everyone = {(group, number) for group in ("red", "blue") for number in range(4)}
    for do in ("kill member", "stop member"):
        assert {(step.group, step.number) for steps in made for step in steps if step.do == do} == everyone
    for steps in made:
        places = [(step.group, step.number) for step in steps if step.do != "kill broker"]
        assert len(places) == len(set(places)), "a member has one fault in a round"
