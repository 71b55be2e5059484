"""The console as a process beside a daemon with the real events, and the machine's own Chromium in front of it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import seglog
from tests.processes import Daemon, clean_environment, daemon, free_port, seglog_command
from tests.processes import seglog as run_seglog
from tests.support import missing, shared_data

EVENTS = 20_000
"""Of the real ones: enough for pages that are full, and for segments that lie side by side."""
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
SECONDS = 60_000
"""For a page that is slow on a busy machine, ms."""


@dataclass(frozen=True)
class Running:
    """A console: where it is, and the broker that it shows."""

    address: str
    broker: Daemon
    process: "subprocess.Popen[str]"

    def next_line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def console(broker: Daemon, *arguments: str) -> Iterator[Running]:
    """A console as people start it."""
    port = free_port()
    with subprocess.Popen(
        seglog_command(broker.address, "console", "--listen", f"127.0.0.1:{port}", *arguments),
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Running(f"http://localhost:{port}", broker, process)
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of the machine."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing("browser: no chromium; Debian has it as the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def events_broker(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the first of the real events, a group that lags and one that is empty."""
    events = shared_data("commit-events.jsonl.gz")
    with daemon(tmp_path_factory.mktemp("browser") / "data") as running:
        fill(running, events)
        yield running


def fill(broker: Daemon, events: Path) -> None:
    """Load the real events, and a group that has read some of them."""
    with subprocess.Popen(["gzip", "-cd", str(events)], stdout=subprocess.PIPE) as unpacked:
        assert unpacked.stdout is not None
        lines = b"".join(unpacked.stdout.readline() for _ in range(EVENTS))
        unpacked.terminate()
    settings = ("segment.bytes=262144", "segment.ms=315360000000", "retention.ms=-1")
    config = [part for setting in settings for part in ("--config", setting)]
    done = run_seglog(broker.address, "topic", "create", "commits", "--partitions", "3", *config)
    assert done.returncode == 0, done.stderr
    how = ("--format", "json", "--key-field", "path", "--timestamp-field", "ts", "--batch-bytes", "4KiB")
    done = run_seglog(broker.address, "produce", "commits", *how, stdin=lines)
    assert done.returncode == 0, done.stderr
    with seglog.connect(broker.address) as client, client.consumer("commits", group="readers") as consumer:
        for _, _record in zip(range(100), consumer, strict=False):
            pass
        consumer.commit()


@pytest.fixture(scope="session")
def shown(events_broker: Daemon) -> Iterator[Running]:
    """A console that lets anybody in."""
    with console(events_broker, "--no-token") as running:
        running.next_line()
        yield running


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A window of its own, 1280 by 900."""
    made = chromium.new_context(viewport={"width": 1280, "height": 900})
    made.set_default_timeout(SECONDS)
    yield made
    made.close()


@pytest.fixture
def tab(context: BrowserContext, shown: Running) -> Page:
    """A tab, whose addresses begin at the console; what its script complains of fails the test."""
    page = context.new_page()
    page.goto(shown.address)
    page.on("pageerror", lambda error: pytest.fail(f"{page.url}: {error}"))
    return page
