"""What tests of commands share: what is typed at a terminal, or with a file as standard input."""

import io
import sys
from collections.abc import Callable

import pytest

from seglog.cli import main

Typed = Callable[..., tuple[int, str, str]]
Said = Callable[..., str]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run a command, at a terminal if there is an answer to what it asks: exit code, stdout, stderr."""

    def run(*arguments: str, stdin: bytes = b"", answer: str | None = None) -> tuple[int, str, str]:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)) if answer is None else _Terminal(answer))
            patched.setattr(sys.stderr, "isatty", lambda: answer is not None, raising=False)
            code = main(arguments)
        sys.stdout.flush()
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def said(typed: Typed) -> Said:
    """Run a command that is to end with this exit code: all that it prints."""

    def run(code: int, *arguments: str, stdin: bytes = b"") -> str:
        found, out, error = typed(*arguments, stdin=stdin)
        assert found == code, error
        return out + error

    return run
