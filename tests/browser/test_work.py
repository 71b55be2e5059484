"""Work with the console in a browser: a search cancelled, a topic altered by keys alone, a group reset, a login."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

import seglog
from tests.browser.conftest import SECONDS, Running, console
from tests.processes import Daemon, daemon, seglogd

pytestmark = pytest.mark.timeout(180)  # a browser that hangs
expect.set_options(timeout=SECONDS)


def test_a_search_goes_on_by_itself_until_it_is_cancelled(tab: Page, shown: Running, events_broker: Daemon) -> None:
    with seglog.connect(events_broker.address) as client:
        client.create_topic("large", 1)
        with client.producer("large") as producer:
            for number in range(200):
                producer.send(b"needle" if number == 10 else bytes(700_000))
    held: list[Route] = []
    tab.route(re.compile("next="), lambda route: held.append(route))  # noqa: PLW0108 - a method of a list has no attributes
    tab.goto(f"{shown.address}/topics/large/search?find=needle")
    cancel = tab.get_by_role("button", name="Cancel")
    while not held:
        tab.wait_for_timeout(20)
    assert tab.locator("progress").evaluate("bar => 0 < bar.value && bar.value < 1")
    cancel.click()
    held[0].continue_()
    expect(cancel).to_be_hidden()
    expect(tab.get_by_role("link", name="Go on")).to_be_visible()
    assert len(held) == 1
    tab.unroute(re.compile("next="))
    tab.reload()
    expect(tab.locator("[data-search-progress]")).to_contain_text("that is all")
    expect(tab.locator("[data-search-matches] tbody tr")).to_have_count(1)


def test_a_topic_is_altered_by_keys_alone(tab: Page, shown: Running, events_broker: Daemon) -> None:
    with seglog.connect(events_broker.address) as client:
        client.create_topic("altered", 1)
        tab.goto(f"{shown.address}/topics/altered/settings?key=retention.ms#edit")
        tab.locator("#value").press("Control+a")
        tab.keyboard.type("3d")
        tab.keyboard.press("Enter")
        expect(tab.locator("main")).to_contain_text(" topic alter altered --config retention.ms=3d")
        focus_button(tab, "Change a topic")
        tab.keyboard.press("Enter")
        expect(tab.locator("main")).to_contain_text("259200000")
        assert (client.describe_topic("altered").config or {})["retention.ms"].value == "259200000"


def focus_button(tab: Page, name: str) -> None:
    """Press Tab until a button has the focus."""
    for _ in range(50):
        tab.keyboard.press("Tab")
        if tab.evaluate("() => document.activeElement.textContent.trim()") == name:
            return
    raise AssertionError(f"Tab never came to {name}")


def test_a_group_is_reset_behind_its_dry_run(tab: Page, shown: Running, events_broker: Daemon) -> None:
    tab.goto(f"{shown.address}/groups")
    tab.get_by_role("link", name="readers").click()
    tab.locator("#to").fill("latest")
    tab.get_by_role("button", name="Show the reset").click()
    expect(tab.locator("main")).to_contain_text(" group reset readers --to latest --all-topics --execute")
    expect(tab.locator("main")).to_contain_text("nothing is changed: add --execute")
    tab.get_by_role("button", name="Reset a group").click()
    expect(tab.get_by_role("heading", name="readers")).to_be_visible()
    with seglog.connect(events_broker.address) as client:
        lags = [each.lag for each in client.describe_group("readers").offsets]
    assert all(lag is not None and lag.records == 0 for lag in lags)


def test_a_browser_logs_in_and_out(context: BrowserContext, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret of ann")
    done = seglogd(
        "init", "--data", str(tmp_path / "data"), "--admin", "ann", "--password-file", str(tmp_path / "password")
    )
    assert done.returncode == 0, done.stderr
    with daemon(tmp_path / "data", "--listen", "SASL_PLAINTEXT://127.0.0.1:0") as running, console(running) as pages:
        assert pages.next_line().startswith("browsers log in at http")
        page = context.new_page()
        page.goto(pages.address)
        page.get_by_label("Account").fill("ann")
        page.get_by_label("Password").fill("secret of ann")
        page.keyboard.press("Enter")
        expect(page.locator("header")).to_contain_text("as ann")
        assert "secret of ann" not in str(context.cookies()) + page.url + page.content()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Account")).to_be_visible()
