"""A console on a broker of the module, and a browser that was let in."""

import html
import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import seglog
from seglog.testing import Broker
from seglog_console.app import Console, application


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
