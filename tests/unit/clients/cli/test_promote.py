"""``seglog promote`` against a socket that answers as a standby does."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from seglog.cli.promote import SOCKET
from seglog_broker.runtime import unix_sockets
from seglog_broker.storage.io import filenames
from tests.unit.clients.cli.conftest import Typed


class Answering:
    """A socket in a directory that answers each request with the next of these states; ``asked`` are the requests."""

    def __init__(self, directory: Path, states: Sequence[dict[str, object]]) -> None:
        self.asked: list[dict[str, object]] = []
        self._states = states
        self._listening = unix_sockets.listen(str(directory / SOCKET))
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        for state in self._states:
            connection, _ = self._listening.accept()
            with connection, connection.makefile("rwb") as file:
                self.asked.append(json.loads(file.readline()))
                file.write(json.dumps(state).encode() + b"\n" if state else b"")

    def close(self) -> None:
        self._thread.join()
        self._listening.close()


def state(*said: str, stage: str = "standby", refused: str = "") -> dict[str, object]:
    return {"stage": stage, "sentence": f"data: {stage}", "said": said, "refused": refused}


SERVES = state("waiting", "applied", stage="serving")


@pytest.mark.parametrize(
    ("arguments", "states", "code", "out", "error"),
    [
        ((), [state("waiting"), SERVES], 0, "waiting\napplied\ndata: serving\n", ""),
        (("--without-lease",), [SERVES], 0, "waiting\napplied\ndata: serving\n", ""),
        (("--json",), [state("waiting"), SERVES], 0, f"{json.dumps(SERVES)}\n", ""),
        (("--status",), [state("waiting")], 0, "data: standby\n", ""),
        ((), [state("waiting"), state("waiting", refused="no lease")], 1, "waiting\n", "seglog: no lease\n"),
        ((), [state("waiting"), {}], 1, "waiting\n", "seglog: the standby ended before it served"),
    ],
)
def test_each_step_is_shown_once_and_the_exit_code_says_if_it_serves(
    tmp_path: Path,
    typed: Typed,
    arguments: Sequence[str],
    states: list[dict[str, object]],
    code: int,
    out: str,
    error: str,
) -> None:
    directory = tmp_path / ("long" * 40)  # more than fits into the address of a socket
    directory.mkdir()
    answering = Answering(directory, states)
    found = typed("promote", str(directory), *arguments)
    answering.close()
    assert found[:2] == (code, out)
    assert found[2].startswith(error)
    first, *others = answering.asked
    want = "status" if "--status" in arguments else "promote"
    assert first == {"want": want, "without_lease": "--without-lease" in arguments}
    assert {each["want"] for each in others} <= {"status"}  # it is asked for once


def test_where_no_standby_runs_it_is_not_reachable(tmp_path: Path, typed: Typed) -> None:
    assert SOCKET == filenames.STANDBY_SOCKET
    for directory in (tmp_path, tmp_path / "absent"):
        code, _, error = typed("promote", str(directory))
        assert code == 3
        assert "seglogd --standby makes it" in error
