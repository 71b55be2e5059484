"""Kafka's own tools, run on a broker."""

import os
import subprocess

from tests.interop.peer import kafka_script


class Tools:
    """Kafka's own tools, as processes, that speak to a port."""

    def __init__(self, port: int) -> None:
        self._script = kafka_script()
        self._server = ("--bootstrap-server", f"127.0.0.1:{port}")

    def run(self, *tool: str, arguments: tuple[str, ...] = (), stdin: str = "", fails: bool = False) -> str:
        """What it prints; ``tool`` is a verb of the script, or ``run`` and a class of ``org.apache.kafka.tools``.

        Its errors, too, where it ``fails``.
        """
        if tool[0] == "run":
            tool = ("run", f"org.apache.kafka.tools.{tool[1]}")
        done = subprocess.run(
            [self._script, *tool, *self._server, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=os.environ | {"KAFKA_TOOL_HEAP": "-Xmx128m"},
            timeout=300,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"{tool} {arguments}: {done.stdout} {done.stderr[-2000:]}"
        return done.stdout + (done.stderr if fails else "")
