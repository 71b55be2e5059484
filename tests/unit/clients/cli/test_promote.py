"""``seglog promote`` against a socket that answers as a standby does."""

import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from seglog.cli.promote import SOCKET
from seglog_broker.runtime import unix_sockets
from seglog_broker.storage.io import filenames
from tests.unit.clients.cli.conftest import Typed


class Answering:
    """A socket in a directory that answers one request with these lines; ``asked`` is what it was."""

    def __init__(self, directory: Path, lines: Sequence[dict[str, str]]) -> None:
        self.asked: dict[str, object] = {}
        self._lines = lines
        self._listening = unix_sockets.listen(str(directory / SOCKET))
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        connection, _ = self._listening.accept()
        with connection, connection.makefile("rwb") as file:
            self.asked = json.loads(file.readline())
            file.writelines(json.dumps(line).encode() + b"\n" for line in self._lines)

    def close(self) -> None:
        self._thread.join()
        self._listening.close()


WAITING, SERVES = {"said": "waiting 11.0 s"}, {"done": "data serves"}


@pytest.mark.parametrize(
    ("arguments", "lines", "code", "out", "error"),
    [
        ((), [WAITING, SERVES], 0, "waiting 11.0 s\ndata serves\n", ""),
        (("--without-lease",), [SERVES], 0, "data serves\n", ""),
        (("--json",), [WAITING, SERVES], 0, '{"done": "data serves"}\n', ""),
        (("--status",), [{"done": "standby of x"}], 0, "standby of x\n", ""),
        ((), [WAITING, {"failed": "no lease"}], 1, "waiting 11.0 s\n", "seglog: no lease\n"),
        ((), [WAITING], 1, "waiting 11.0 s\n", "seglog: the standby ended the connection before it served"),
    ],
)
def test_each_step_is_shown_and_the_exit_code_says_if_it_serves(
    tmp_path: Path, typed: Typed, arguments: Sequence[str], lines: list[dict[str, str]], code: int, out: str, error: str
) -> None:
    directory = tmp_path / ("long" * 40)  # more than fits into the address of a socket
    directory.mkdir()
    answering = Answering(directory, lines)
    found = typed("promote", str(directory), *arguments)
    answering.close()
    assert found[:2] == (code, out)
    assert found[2].startswith(error)
    want = "status" if "--status" in arguments else "promote"
    assert answering.asked == {"want": want, "without_lease": "--without-lease" in arguments}


def test_where_no_standby_runs_it_is_not_reachable(tmp_path: Path, typed: Typed) -> None:
    assert SOCKET == filenames.STANDBY_SOCKET
    for directory in (tmp_path, tmp_path / "absent"):
        code, _, error = typed("promote", str(directory))
        assert code == 3
        assert "seglogd --standby makes it" in error
    with socket.socket(socket.AF_UNIX) as left:  # by a process that was killed
        left.bind(str(tmp_path / SOCKET))
    assert typed("promote", str(tmp_path))[0] == 3
