"""The overview, and how pages stay current."""

from starlette.testclient import TestClient

import seglog
from seglog.testing import Broker
from seglog_console.app import application
from seglog_console.console import Console
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
