"""Pictures of each page on the real events, light and dark: SEGLOG_PICTURES=docs/pictures renews the documents'."""

import base64
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import seglog
from tests.browser.conftest import SCHEMES, SECONDS, Running, console
from tests.processes import PATIENCE_SECONDS, daemon

pytestmark = pytest.mark.timeout(180)  # a browser that hangs

PAGES = {
    "overview": ("/", "No problems"),
    "topics": ("/topics", "commits"),
    "topic": ("/topics/commits", "now"),
    "partition": ("/topics/commits?partition=0", "SEGMENT"),
    "segment": ("/topics/commits/0/segments/0", "batches"),
    "seek": ("/topics/commits/0/seek?at=2000", "PROBE"),
    "records": ("/topics/commits/records?partition=0&at=2000", "path"),
    "search": ("/topics/commits/search?find=Topic", "match"),
    "settings": ("/topics/commits/settings?key=retention.ms", "retention.ms"),
    "groups": ("/groups", "readers"),
    "group": ("/groups/readers", "commits-0"),
    "transactions": ("/transactions", "ransactions"),
    "broker": ("/broker", "log.dir"),
    "access": ("/access", "ccounts"),
}


def picture(page: Page, name: str, folder: Path) -> None:
    """The part of a page that a window shows, light and dark, as WebP."""
    session = page.context.new_cdp_session(page)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        image = session.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
        (folder / f"{name}-{scheme}.webp").write_bytes(base64.b64decode(image["data"]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where pictures go."""
    named = os.environ.get("SEGLOG_PICTURES")
    made = Path(named) if named else tmp_path
    made.mkdir(exist_ok=True)
    return made


@pytest.fixture
def window(chromium: Browser) -> Iterator[Page]:
    """A window for pictures."""
    with chromium.new_context(viewport={"width": 1360, "height": 800}) as context:
        context.set_default_timeout(SECONDS)
        yield context.new_page()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_its_picture(window: Page, shown: Running, name: str, folder: Path) -> None:
    path, expected = PAGES[name]
    window.goto(shown.address + path)
    assert expected in window.locator("main").inner_text()
    picture(window, name, folder)


def test_a_topic_that_runs_shows_how_long_its_records_are_kept(window: Page, tmp_path: Path, folder: Path) -> None:
    """Ten seconds of retention, seven of a segment, five between checks, one until the files are gone."""
    often = ("--set", "log.retention.check.interval.ms=5000", "--set", "log.initial.task.delay.ms=1000")
    settings = {"retention.ms": 10_000, "segment.ms": 7_000, "file.delete.delay.ms": 1_000}
    with daemon(tmp_path / "data", *often) as running, console(running, "--no-token") as pages:
        pages.next_line()
        with seglog.connect(running.address) as client:
            client.create_topic("visits", 1, settings)
            window.goto(f"{pages.address}/topics/visits?partition=0")
            with client.producer("visits", linger_ms=0) as producer:
                give_up = time.monotonic() + PATIENCE_SECONDS
                while "deleted" not in (text := window.locator("main").text_content() or ""):
                    assert time.monotonic() < give_up, text
                    producer.send(b"a visit")
                    window.wait_for_timeout(500)
        assert re.search(r"kept 1\d to [12]\d s; configured: 10 s", text)
        assert "may expire from" in text
        picture(window, "retention", folder)
