"""A console on a broker of the module, and a browser that was let in."""

import asyncio
import html
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from starlette.requests import Request
from starlette.routing import Match
from starlette.testclient import TestClient

import seglog
from seglog.cli import main
from seglog.testing import Broker
from seglog_console.app import application
from seglog_console.commands import Commands, Outcome, shell_text
from seglog_console.console import Console
from seglog_protocol.record_batch import HEADER_SIZE, parse_header


class CommandsHere(Commands):
    """Runs commands in this process, one at a time, and keeps what it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[list[str]] = []

    async def child(self, words: Sequence[str], given: bytes, password: str) -> Outcome:
        self.ran.append(list(words))
        with NamedTemporaryFile("w") as file:
            file.write(password)
            file.flush()
            secret = ["--password-file", file.name] if password else []
            return await asyncio.to_thread(_run, words, given, secret)


def _run(words: Sequence[str], given: bytes, secret: Sequence[str]) -> Outcome:
    output, before = io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(given))
    try:
        with redirect_stdout(output), redirect_stderr(output):
            code = main([*secret, *words])
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


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Broker]:
    """The second of three batches has a bit that is wrong."""
    with Broker(directory=tmp_path) as broker:
        broker.create_topic("t")
        with seglog.connect(broker.address) as client:
            for value in ("one", "two", "three"):
                with client.producer("t") as producer:
                    producer.send(value)
        log = tmp_path / "t-0" / f"{0:020}.log"
        content = bytearray(log.read_bytes())
        content[parse_header(bytes(content)).size + HEADER_SIZE] ^= 1
        log.write_bytes(content)
        yield broker


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


def streamed(server: Broker, path: str, query: str = "live") -> str:
    """The first part that the stream of a page sends."""

    async def look() -> str:
        console = Console(server.address, has_token=False)
        app = application(console)
        async with app.router.lifespan_context(app):
            session = console.sessions.open(await console.shared(), is_own_viewer=False)
            headers = [(b"host", b"localhost"), (b"cookie", f"{console.cookie}={session.id}".encode())]
            asked: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "query_string": query.encode()}
            asked |= {"root_path": "", "headers": headers, "app": app}
            matches = (route.matches(asked) for route in app.routes)
            found = next(scope for match, scope in matches if match is Match.FULL)
            events = (await found["endpoint"](Request(asked | dict(found)))).body_iterator
            async with aclosing(events):
                fragment: str = json.loads((await anext(events)).partition("data: ")[2])
        return fragment

    return asyncio.run(look())
