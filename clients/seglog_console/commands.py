"""Commands of ``seglog`` that are run for browsers, each as a process of its own with the browser's account."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from seglog.core.security import Tls

SECONDS: Final = 60.0
"""How long a command may take; then it is killed."""
OUTPUT_BYTES_MAX: Final = 64 * 1024
RUNNING_MAX: Final = 4
"""Commands at a time, of all browsers together; of each browser one."""

_SAFE: Final = re.compile(r"[ -~]")
_NO_FOLDER: Final = "/nonexistent"


class Outcome(NamedTuple):
    """The end of a command: ``code`` is its exit code, None where it was killed; ``cut`` bytes are not kept."""

    command: str
    code: int | None
    output: str
    cut: int = 0


class BusyError(Exception):
    """A browser's command runs still, and it wants another."""


def shell_text(words: Sequence[str]) -> str:
    """Words as a shell takes them; characters that would not be seen as bash, zsh and ksh write them."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    escaped = "".join(each if each not in "\\'" and _SAFE.match(each) else f"\\U{ord(each):08x}" for each in word)
    return f"$'{escaped}'"


def words_of(command: Sequence[str], names: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """All words of a command; a name, which others may have chosen, is no option where it begins with ``-``."""
    if any(name.startswith("-") for name in names):
        return [*command, *options, "--", *names]
    return [*command, *names, *options]


def options_of(server: str, account: str, security: Mapping[str, Any]) -> list[str]:
    """The options in front of each command: which broker, and how to come to it; without the password."""
    options = ["--server", server]
    given = {"--user": account, "--mechanism": security.get("mechanism") if account else None}
    tls = security.get("tls")
    if isinstance(tls, Tls):
        given |= {"--ca": tls.ca, "--certificate": tls.certificate, "--key": tls.key}
    elif tls is not None:
        options.append("--tls" if tls else "--no-tls")
    for option, value in given.items():
        options += [option, os.fspath(value)] if value else []
    return options


class Commands:
    """Runs ``program`` with the words of commands, and ends what runs when the console ends."""

    def __init__(
        self, program: Sequence[str] = (sys.executable, "-P", "-m", "seglog"), seconds: float = SECONDS
    ) -> None:
        self._program = program
        self._seconds = seconds
        self._room = asyncio.Semaphore(RUNNING_MAX)
        self._busy: set[str] = set()
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(self, browser: str, words: Sequence[str], given: bytes = b"", password: str = "") -> Outcome:
        """Run a command for a browser, with ``given`` as its standard input. Raises BusyError, OSError."""
        if browser in self._busy:
            raise BusyError("another command of this browser runs still: wait for it, then send this again")
        self._busy.add(browser)
        try:
            async with self._room:
                return await self.child(words, given, password)
        finally:
            self._busy.discard(browser)

    async def child(self, words: Sequence[str], given: bytes, password: str) -> Outcome:
        """The command as a process. Its account's password comes over a pipe, so that no list of processes has it."""
        descriptor = _readable(password.encode()) if password else None
        secret = [] if descriptor is None else ["--password-file", f"/dev/fd/{descriptor}"]
        try:
            process = await asyncio.create_subprocess_exec(
                *(word.encode() for word in (*self._program, *secret, *words)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(os.environ),
                pass_fds=() if descriptor is None else (descriptor,),
            )
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._running.add(process)
        output, cut, code = bytearray(), 0, None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._seconds):
                process.stdin.write(given)
                process.stdin.close()
                while piece := await process.stdout.read(OUTPUT_BYTES_MAX):
                    kept = piece[: OUTPUT_BYTES_MAX - len(output)]
                    output += kept
                    cut += len(piece) - len(kept)
                code = await process.wait()
        except TimeoutError:
            pass
        finally:
            _kill([process])
            await process.wait()
            self._running.discard(process)
        return Outcome(shell_text(["seglog", *words]), code, output.decode(errors="replace"), cut)

    def close(self) -> None:
        """End what runs."""
        _kill(self._running)


def _kill(processes: Collection[asyncio.subprocess.Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            process.kill()


def _readable(content: bytes) -> int:
    """A descriptor from which ``content`` can be read once."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # what does not fit into a pipe is no password that a file may hold
    try:
        os.write(writer, content)
    finally:
        os.close(writer)
    return reader


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Without what a command would take a broker or an account from: it gets both by its options."""
    kept = {name: value for name, value in given.items() if not name.startswith(("SEGLOG_", "_SEGLOG_"))}
    return kept | {"XDG_CONFIG_HOME": _NO_FOLDER, "PYTHONUTF8": "1", "NO_COLOR": "1"}
