"""A console on a broker of the module, and a browser that was let in."""

import asyncio
import html
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
from starlette.testclient import TestClient

import seglog
from seglog.cli import main
from seglog.testing import Broker
from seglog_console.app import Console, application
from seglog_console.commands import Commands, Outcome, shell_text


class CommandsHere(Commands):
    """Runs commands in this process, one at a time, and keeps what it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[list[str]] = []

    async def child(self, words: Sequence[str], given: bytes, password: str) -> Outcome:
        self.ran.append(list(words))
        return await asyncio.to_thread(_run, words, given)


def _run(words: Sequence[str], given: bytes) -> Outcome:
    output, before = io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(given))
    try:
        with redirect_stdout(output), redirect_stderr(output):
            code = main(list(words))
    finally:
        sys.stdin = before
    return Outcome(shell_text(["seglog", *words]), code, output.getvalue())


class Visitor:
    """Somebody who looks at pages and sends their forms, as a browser does."""

    def __init__(self, browser: TestClient) -> None:
        self.browser = browser
        self.html = ""
        self.status = 0

    def see(self, address: str) -> str:
        """The text of a page."""
        return self._shown(self.browser.get(address))

    def send(self, form: str, **typed: str) -> str:
        """Send the first form of the page whose address begins so; returns what the page says that comes."""
        action, inputs = re.findall(rf'<form [^>]*action="({re.escape(form)}[^"]*)"(.*?)</form>', self.html, re.DOTALL)[
            0
        ]
        hidden = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', inputs))
        data = {name: html.unescape(value) for name, value in hidden.items()} | typed
        headers = {"origin": "http://localhost"}
        return self._shown(self.browser.post(html.unescape(action), data=data, headers=headers))

    def command(self) -> str:
        """The first command that the page shows."""
        return html.unescape(re.findall(r"<code>(.*?)</code>", self.html, re.DOTALL)[0])

    def _shown(self, response: Any) -> str:
        self.html, self.status = response.text, response.status_code
        return text_of(self.html)


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Broker) -> Iterator[seglog.Client]:
    with seglog.connect(server.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def browser(server: Broker) -> Iterator[TestClient]:
    console = Console(server.address)
    with TestClient(application(console), base_url="http://localhost") as entering:
        assert entering.get(f"/enter?token={console.sessions.token}").url.path == "/"
        yield entering


def text_of(page: str) -> str:
    """What a page says, without its elements, in one line."""
    return " ".join(html.unescape(re.sub(r"<(style|script|title).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)).split())


@pytest.fixture
def commands() -> CommandsHere:
    return CommandsHere()


@pytest.fixture
def visitor(server: Broker, commands: CommandsHere) -> Iterator[Visitor]:
    """Somebody who was let in, and whose changes are made in this process."""
    console = Console(server.address, has_token=False)
    console.commands = commands
    with TestClient(application(console), base_url="http://localhost") as browser:
        yield Visitor(browser)
