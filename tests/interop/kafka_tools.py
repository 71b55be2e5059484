"""Kafka's own tools, run on a broker."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.peer import KAFKA_VERSION, kafka_script


class Tools:
    """Kafka's own tools of a version, as processes, that speak to a port; they log in as the file ``account`` says."""

    def __init__(self, port: int, version: str = KAFKA_VERSION, account: Path | None = None) -> None:
        self._script = kafka_script()
        self._version = version
        account_given = () if account is None else ("--command-config", str(account))
        self._server = ("--bootstrap-server", f"127.0.0.1:{port}", *account_given)

    def run(self, *tool: str, arguments: tuple[str, ...] = (), stdin: str = "", fails: bool | None = False) -> str:
        """What it prints; ``tool`` is a verb of the script, or ``run`` and a class of ``org.apache.kafka.tools``.

        Its errors, too, where it ``fails``, or where that is None: then it may end either way.
        """
        if tool[0] == "run":
            tool = ("run", f"org.apache.kafka.tools.{tool[1]}")
        done = subprocess.run(
            [self._script, *tool, *self._server, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=os.environ | {"KAFKA_TOOL_HEAP": "-Xmx128m", "KAFKA_VERSION": self._version},
            timeout=300,
            check=False,
        )
        assert fails in {None, done.returncode != 0}, f"{tool} {arguments}: {done.stdout} {done.stderr[-2000:]}"
        return done.stdout + ("" if fails is False else done.stderr)


_TIME: Final = r"(?:CreateTime|LogAppendTime): -?\d+"
_DESCRIPTION: Final = re.compile(
    rf"baseOffset: .* {_TIME} size: \d+ magic: 2 compresscodec: \w+ crc: \d+ isvalid: true"
    rf"|\| offset: \d+ {_TIME} keySize: -?\d+ valueSize: -?\d+ .*"
    r"|offset: \d+ position: \d+|timestamp: \d+ offset: \d+|producerId: \d+ producerEpoch: \d+ .*"
    r"|Dumping .*|Log starting offset: \d+|\S+ is empty\.?|"
)
_GAPS: Final = re.compile(r"Non-consecutive offsets in \S+\n(?:  -?\d+ is followed by \d+\n)+")
"""Compaction leaves gaps, and this version of the tool counts from -1 in each file."""

_DUMPED_AT_ONCE: Final = 500
"""Files whose names fit on a command line."""


def complaints(files: Sequence[Path]) -> list[str]:
    """What ``dump-log`` says of files, and no line that describes one: its exit status is 0 whatever it finds."""
    found = []
    for first in range(0, len(files), _DUMPED_AT_ONCE):
        some = files[first : first + _DUMPED_AT_ONCE]
        command = [str(kafka_script()), "dump-log", "--deep-iteration", "--print-data-log", "--files"]
        done = subprocess.run([*command, ",".join(map(str, some))], capture_output=True, check=False, timeout=300)
        told = done.stdout.decode(errors="replace").split("\n")
        assert [line for line in told if line.startswith("Dumping ")] == [f"Dumping {file}" for file in some]
        told += _GAPS.sub("", done.stderr.decode(errors="replace")).split("\n")
        found += [line for line in told if not _DESCRIPTION.fullmatch(line)]
    return found
