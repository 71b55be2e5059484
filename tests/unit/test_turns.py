"""A verdict on a turn of the loop is passed when each of three runs found it too long, and other failures at once."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.turns import ATTEMPTS, LIMIT_SECONDS, TurnTooLongError, judge_turn, judges_turns

REFERENCE = LIMIT_SECONDS / 100
LONG = 2 * LIMIT_SECONDS


def test_the_limit_grows_with_the_reference() -> None:
    judge_turn(LONG, "a turn", [REFERENCE, LONG])
    with pytest.raises(TurnTooLongError, match=r"a turn: 60\.0 ms, where a reference takes 0\.3 ms"):
        judge_turn(LONG, "a turn", [REFERENCE])


@pytest.fixture(params=["blocking", "trio"])
def judged(request: pytest.FixtureRequest) -> Callable[[Iterator[float], Path], list[Path]]:
    """Judge turns, one an attempt, of a test that is blocking or awaits; returns the directory of each attempt."""

    def run(turns: Iterator[float], tmp_path: Path) -> list[Path]:
        folders = []

        @judges_turns
        def blocking(tmp_path: Path) -> None:
            folders.append(tmp_path)
            judge_turn(next(turns), "a turn", [REFERENCE])

        @judges_turns
        async def on_trio(tmp_path: Path) -> None:
            async with trio.open_nursery():
                folders.append(tmp_path)
                judge_turn(next(turns), "a turn", [REFERENCE])

        async def call(test: Callable[..., Awaitable[None]]) -> None:
            await test(tmp_path=tmp_path)

        if request.param == "trio":
            trio.run(call, on_trio)
        else:
            blocking(tmp_path=tmp_path)
        return folders

    return run


def test_one_long_turn_of_a_busy_machine_is_no_failure(
    judged: Callable[[Iterator[float], Path], list[Path]], tmp_path: Path
) -> None:
    assert judged(iter([LONG, 0]), tmp_path) == [tmp_path / "1", tmp_path / "2"]
    assert all(path.is_dir() for path in tmp_path.iterdir())


def test_a_turn_that_is_long_each_time_is_one(
    judged: Callable[[Iterator[float], Path], list[Path]], tmp_path: Path
) -> None:
    turns = iter([LONG] * (ATTEMPTS + 1))
    with pytest.RaisesGroup(TurnTooLongError, flatten_subgroups=True):
        judged(turns, tmp_path)
    assert list(turns) == [LONG]


def test_what_else_fails_fails_at_once() -> None:
    attempts = []

    @judges_turns
    def fails() -> None:
        attempts.append(1)
        raise OSError

    with pytest.raises(OSError):
        fails()
    assert attempts == [1]
