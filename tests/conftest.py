"""What every test run shares."""

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from pathlib import Path
from zlib import crc32

import pytest
import structlog
from hypothesis import HealthCheck, settings

import seglog
from seglog_protocol import frames
from tests.processes import Daemon, daemon
from tests.support import REPOSITORY, soak_parts, soak_scaled, soak_seed

# No test passes or fails by the clock; CI machines are slow and shared. `make test` tries few examples of each property
# and `make soak` the number that the test asks for, see `examples` of `tests/support.py`.
settings.register_profile(
    "seglog", deadline=None, print_blob=True, max_examples=5, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("seglog"), max_examples=max(10, soak_scaled(100)))
settings.load_profile("seglog")

SOAKS = REPOSITORY / "tests" / "soak"

# Daemons of tests that run side by side would all want the ports of Kafka and HTTP: those that need them choose some.
os.environ.setdefault("SEGLOG_LISTENERS", "")
os.environ.setdefault("SEGLOG_HTTP_LISTEN", "")

# As the daemon writes them: structlog's own way shows the variables of each frame, which takes seconds.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# A shell has its background jobs ignore Ctrl-C, and nohup a hang-up: so would every process that a test signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon of the test's own, which it may stop."""
    with daemon(tmp_path / "data") as started:
        yield started


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for all tests of a module."""
    with daemon(tmp_path_factory.mktemp("shared") / "data") as started:
        yield started


@pytest.fixture
def emptied(shared: Daemon) -> Daemon:
    """The daemon of the module, without topics."""
    with seglog.connect(shared.address) as client:
        for topic in client.topics():
            client.delete_topic(topic.name)
    return shared


def pytest_sessionstart() -> None:
    """Whoever names a compiled wheel has the tests run on its packages."""
    if os.environ.get("SEGLOG_WHEEL") and frames.__file__.endswith(".py"):
        pytest.exit(f"SEGLOG_WHEEL is set, and the packages under test are the sources: {frames.__file__}", 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks everything below tests/soak; the longest tests come first, so that no core waits for one at the end.

    Of soak tests those stay that the minutes have room for: files in turn, by the seed.
    """
    for item in items:
        if item.path.is_relative_to(SOAKS):
            item.add_marker("soak")
    if (parts := soak_parts()) > 1:
        this = soak_seed() % parts
        others = {
            item
            for item in items
            if item.get_closest_marker("soak") and crc32(item.location[0].encode()) % parts != this
        }
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]
    items.sort(key=lambda item: item.get_closest_marker("soak") is None)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not walk all of it whenever it runs."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """At its end Python collects it as ever; duckdb prints what it finds to be left.

    A lane that has no file of this part of the soak has not failed.
    """
    gc.unfreeze()
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and soak_parts() > 1:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints where the time went, and the counts of soak tests, which processes beside each other cannot print."""
    seconds: dict[str, float] = defaultdict(float)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if type(report) is pytest.TestReport:
            seconds["/".join(report.nodeid.split("/")[1:-1][:3])] += report.duration
    if seconds:
        most = ", ".join(f"{where} {taken:.0f} s" for where, taken in nlargest(8, seconds.items(), key=itemgetter(1)))
        terminalreporter.write_line(f"of {sum(seconds.values()):.0f} s of tests: {most}")
    for report in terminalreporter.getreports("passed"):
        if "soak" in report.keywords and report.capstdout:
            terminalreporter.write_sep("-", report.nodeid)
            terminalreporter.write(report.capstdout)
