"""The overview, and how pages stay current."""

import asyncio
import json
from typing import Any

from starlette.testclient import TestClient

import seglog
from seglog.testing import Broker
from seglog_console.app import Console, application
from tests.unit.clients.console.conftest import text_of


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
    sent: list[bytes] = []

    async def look() -> None:
        console = Console(server.address, has_token=False)
        app = application(console)
        session = console.sessions
        async with app.router.lifespan_context(app):
            cookie = f"{console.cookie}={session.open(await console.shared(), is_own_viewer=False).id}"
            came = asyncio.Event()

            async def receive() -> dict[str, Any]:
                await came.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message.get("body", b""))
                if len(sent) == 2:
                    came.set()

            headers = [(b"host", b"localhost"), (b"cookie", cookie.encode())]
            place = {"path": "/", "raw_path": b"/", "query_string": b"live", "root_path": ""}
            kind = {
                "type": "http",
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "asgi": {"version": "3.0"},
            }
            await app(kind | place | {"headers": headers, "server": ("localhost", 80)}, receive, send)

    asyncio.run(look())
    fragment = json.loads(sent[1].decode().removeprefix("data: "))
    assert "<h2" in fragment
    assert "<html" not in fragment
