"""The table of exit codes in docs/REFERENCE.md: each command's own, met where a broker does not answer, or refuses."""

import re
from pathlib import Path

import pytest

from tests.pages import reference
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.secure_broker import secure_broker

TOOLS = reference("Looking at a broker")
COMMANDS = {
    "ping": ["ping"],
    "top": ["top", "--once"],
    "metrics": ["metrics"],
    "doctor": ["doctor"],
    "support-bundle": ["support-bundle", "FILE"],
}


def documented(command: str) -> set[int]:
    """The codes of a command's row."""
    (row,) = [line for line in TOOLS.splitlines() if line.startswith(f"| `seglog {command}")]
    return {int(code) for code in re.findall(r"(?:^|, )(\d+)\b", row.split("|")[3].strip().partition(";")[0])}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_the_exit_codes_of_a_command_are_in_its_own_row(command: str, tmp_path: Path, typed: Typed) -> None:
    def code(server: str, *more: str) -> int:
        words = [str(tmp_path / server.replace(":", "-")) if word == "FILE" else word for word in COMMANDS[command]]
        return typed("--server", server, *words, "--connect-timeout", "0.1", *more)[0]

    met = {0, code("127.0.0.1:1")}
    with secure_broker(passwords={"admin": "some-password"}) as running:
        met.add(code(running.address, "--connect-timeout", "5"))
        if command == "support-bundle":
            met |= {code(running.address), typed("--server", running.address, command, "/proc/there/is/none")[0]}
    assert met >= {0, 3, 4}
    assert met <= documented(command)
