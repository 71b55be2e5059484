"""``seglog top``: one plain page in a pipe, and when the broker is asked."""

from collections.abc import Iterator

import pytest

from seglog.cli.overview.readings import SHARE
from seglog.cli.top import Watched
from seglog.client import Client, connect
from seglog.testing import Broker
from seglog_protocol.errors import AuthenticationError, NotReachableError, SeglogError
from seglog_protocol.messages import HelloReply, MetricFamily, MetricSample
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.hand_clock import HandClock


def test_in_a_pipe_it_is_one_plain_page(group_broker: Broker, typed: Typed) -> None:
    code, out, errors = typed("--server", group_broker.address, "top", "--interval", "0.1")
    assert (code, "\x1b" in out, errors) == (0, False, "")
    lines = out.splitlines()
    assert lines[0].startswith("seglogd/")
    assert any(line.startswith("appends      0 B/s") for line in lines), "rates are there: it was asked twice"
    code, _, errors = typed("--server", group_broker.address, "top", "--json")
    assert (code, "seglog metrics --json" in errors) == (2, True)


def test_without_a_broker_from_the_beginning_it_fails(typed: Typed) -> None:
    assert typed("--server", "127.0.0.1:1", "top", "--once", "--connect-timeout", "0.1")[:2] == (3, "")


# --- When the broker is asked -----------------------------------------------------------------------------------------


class Slow(Client):
    """A client whose readings take a time, or fail, and are counted; only that is asked of it."""

    def __init__(self, client: Client, clock: HandClock) -> None:
        self._inner = client
        self._clock_of_test = clock
        self.took = 0.0
        self.asked = 0
        self.failure: SeglogError | None = None

    @property
    def server(self) -> str:
        return self._inner.server

    @property
    def broker(self) -> HelloReply:
        return self._inner.broker

    def samples(self, families: object = ()) -> list[MetricFamily]:
        self.asked += 1
        self._clock_of_test.pass_by(self.took)
        if self.failure is not None:
            raise self.failure
        return [MetricFamily("seglog_open_files", "gauge", "", [], [MetricSample([], self.asked)])]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def slow(group_broker: Broker, clock: HandClock) -> Iterator[Slow]:
    with connect(group_broker.address) as client:
        yield Slow(client, clock)


def test_the_broker_is_asked_at_intervals(slow: Slow, clock: HandClock) -> None:
    watched = Watched(slow, 2.0, clock.monotonic)
    for _ in range(5):
        watched.refresh()
    assert slow.asked == 1
    clock.now = 2.0
    view = watched.refresh()
    assert slow.asked == 2
    assert view.before is not None


def test_one_that_takes_long_to_tell_is_asked_less_often(slow: Slow, clock: HandClock) -> None:
    slow.took = 1.0
    watched = Watched(slow, 2.0, clock.monotonic)
    clock.now = 1 / SHARE - 0.1
    watched.refresh()
    assert slow.asked == 1
    assert watched.due_in == pytest.approx(0.1)
    clock.now = 1 / SHARE
    watched.refresh()
    assert slow.asked == 2


def test_what_was_known_stays_while_the_broker_is_away(slow: Slow, clock: HandClock) -> None:
    watched = Watched(slow, 2.0, clock.monotonic)
    slow.failure = NotReachableError("no broker answers")
    clock.now = 2.0
    view = watched.refresh()
    assert (view.trouble, view.now.at, view.age) == ("no broker answers", watched.view.now.at, 2.0)
    clock.now = 3.5
    assert watched.refresh().age == 3.5, "it grows also where the broker is not asked"
    slow.failure, clock.now = None, 4.0
    assert watched.refresh().trouble == ""


def test_an_account_that_is_gone_ends_it(slow: Slow, clock: HandClock) -> None:
    watched = Watched(slow, 2.0, clock.monotonic)
    slow.failure = AuthenticationError("no")
    clock.now = 2.0
    with pytest.raises(AuthenticationError):
        watched.refresh()
