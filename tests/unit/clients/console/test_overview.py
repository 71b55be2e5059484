"""The overview, and how pages stay current."""

import asyncio

from starlette.testclient import TestClient

import seglog
from seglog.asyncio import connect
from seglog.testing import Broker
from seglog_console.app import application
from seglog_console.console import Console
from seglog_console.viewer import Viewer
from seglog_protocol.errors import BrokerStoppingError
from tests.unit.clients.console.conftest import streamed, text_of


def test_it_shows_figures_topics_and_groups(server: Broker, client: seglog.Client) -> None:
    client.create_topic("commits", 3)
    with client.producer("commits") as producer:
        producer.send(b"value")
    with TestClient(application(Console(server.address, has_token=False)), base_url="http://localhost") as browser:
        page = text_of(browser.get("/").text)
    assert "No problems. Up" in page
    assert page.index("No problems") < page.index("Figures")
    assert "Topics with the most records a second first" in page
    assert "commits 3 " in page
    assert "No groups yet." in page


def test_a_stream_sends_the_part_of_a_page_that_changes(server: Broker) -> None:
    fragment = streamed(server, "/")
    assert "<h2" in fragment
    assert "<html" not in fragment


def test_a_stream_tells_what_its_page_would(server: Broker, client: seglog.Client) -> None:
    client.create_topic("one")
    assert "partition is '9'" in streamed(server, "/topics/one", "live&partition=9")
    assert streamed(server, "/topics/one/settings") == ""  # which does not change


def test_who_waited_for_an_error_shares_it() -> None:
    calls: list[None] = []

    async def ask() -> None:
        calls.append(None)
        await asyncio.sleep(0)
        raise BrokerStoppingError("away")

    async def look() -> None:
        viewer = Viewer(connect("localhost:1"), asyncio.Event())
        for asked in (1, 2):
            pages = [viewer.shared("question", ask) for _ in range(3)]
            assert {str(error) for error in await asyncio.gather(*pages, return_exceptions=True)} == {"away"}
            assert len(calls) == asked

    asyncio.run(look())
