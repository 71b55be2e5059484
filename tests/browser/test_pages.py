"""Each page on the real events, as people with different eyes, hands and settings have it."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.conftest import SCHEMES, SECONDS, Running

pytestmark = pytest.mark.timeout(180)  # a browser that hangs

PAGES = (
    "/",
    "/topics",
    "/topics/commits",
    "/topics/commits?partition=0",
    "/topics/commits/0/segments/0",
    "/topics/commits/0/seek?at=2000",
    "/topics/commits/records?partition=0&at=2000",
    "/topics/commits/0/records/2000",
    "/topics/commits/search?find=Topic",
    "/topics/commits/produce",
    "/topics/commits/settings?key=retention.ms",
    "/groups",
    "/groups/readers",
    "/transactions",
    "/broker",
    "/access",
)


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_light_and_dark(chromium: Browser, shown: Running, path: str) -> None:
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(shown.address + path, timeout=SECONDS)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            found = Axe().run(page)
            assert not found.response["violations"], found.generate_report()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_no_script_no_other_host_and_no_sideways_scrolling(
    chromium: Browser, shown: Running, path: str
) -> None:
    """In a window of 640 px, as one of 1280 px is at 200 %."""
    with chromium.new_context(java_script_enabled=False, viewport={"width": 640, "height": 450}) as context:
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(shown.address + path, timeout=SECONDS)
        assert all(url.startswith(shown.address) for url in asked)
        assert page.locator("h1").inner_text()
        boxes = [page.locator(part).bounding_box() for part in ("header", "main")]
        assert all(box is not None and box["width"] <= 640 for box in boxes)
        assert page.locator("body").evaluate("body => body.scrollWidth") <= 640


def test_figures_move_without_a_reload(tab: Page, shown: Running) -> None:
    tab.wait_for_function("() => !document.querySelector('.figures').textContent.includes('-, -')", timeout=SECONDS)
    assert "/s" in tab.locator(".figures").inner_text()


def test_keys_lead_to_pages(tab: Page, shown: Running) -> None:
    tab.keyboard.press("Tab")
    assert tab.evaluate("() => document.activeElement.textContent") == "To the content"
    tab.keyboard.press("g")
    tab.keyboard.press("t")
    tab.wait_for_url(f"{shown.address}/topics")
    tab.keyboard.press("/")
    assert tab.evaluate("() => document.activeElement.hasAttribute('data-search')")
