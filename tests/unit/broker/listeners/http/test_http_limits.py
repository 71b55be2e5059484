"""Limits of the listener for HTTP: clients that are slow, silent or many hold up nobody else."""

from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.api.monitoring.families import FAMILIES_BY_NAME
from seglog_broker.api.monitoring.samples import SLICE_SAMPLES_MAX, Sample, Slice
from seglog_broker.listeners.acceptor import UNREAD_SECONDS
from seglog_broker.listeners.http.scrapes import (
    PATIENCE_SECONDS,
    SCRAPES_MAX,
    TURNS_GIVEN_MAX,
    Scrapes,
)
from seglog_broker.listeners.http.wire import IDLE_SECONDS, REQUEST_SECONDS
from seglog_broker.listeners.serving import CONNECTIONS_MAX, serve_http
from seglog_broker.listeners.session import WITHOUT_AUTHENTICATION
from seglog_broker.runtime.slow_readers import CutError
from seglog_broker.security.bearer_token import BearerToken
from seglog_broker.testing.in_process import MovableClock
from tests.unit.broker.listeners.fake_broker import FakeBroker, Peer, serving

LAG = FAMILIES_BY_NAME["seglog_group_lag"]
FULL = Slice.of(LAG, [Sample((f"group-{number}", "topic", "0"), number) for number in range(SLICE_SAMPLES_MAX)])

serve = partial(serve_http, kind=WITHOUT_AUTHENTICATION)


class HttpBroker(FakeBroker):
    """With as many slices as are asked for, which are counted."""

    def __init__(self, slices: int = 1, **config: Any) -> None:
        super().__init__(**config)
        self.slices = slices
        self.made = 0
        self.clock = MovableClock()
        self.http_token = BearerToken()
        self.monitoring = SimpleNamespace(slices=self._slices)
        self.is_looking = trio.Event()

    async def find_problems(self) -> list[str]:
        """For ever."""
        self.is_looking.set()
        await trio.sleep_forever()
        raise AssertionError

    def _slices(self, _names: Collection[str]) -> Iterator[Slice]:
        for _ in range(self.slices):
            self.made += 1
            yield FULL


def request(path: str, *headers: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/1.1", "Host: x", *headers, "")).encode()


async def is_alive(peer: Peer) -> bool:
    await peer.stream.send_all(request("/livez"))
    return (await peer.stream.receive_some()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("paths", [["/metrics"], ["/livez"] * 20])
async def test_requests_that_come_together_are_all_answered(paths: list[str], autojump_clock: MockClock) -> None:
    """The first ones take a whole turn, and nothing more comes that would give another."""
    async with serving(HttpBroker(), serve) as served:
        peer, answers = await served.connect(), b""
        await peer.stream.send_all(b"".join(map(request, [*paths, "/livez"])))
        while answers.count(b"HTTP/1.1 200 ") <= len(paths):
            answers += (part := await peer.stream.receive_some())
            assert part, "the connection has ended"


async def test_half_a_request_is_not_waited_for_however_slowly_its_bytes_come(autojump_clock: MockClock) -> None:
    async with serving(HttpBroker(), serve) as served:
        peer = await served.connect()
        assert await is_alive(peer)
        began = trio.current_time()
        answer: list[bytes] = []

        async def trickle() -> None:
            while True:
                await peer.stream.send_all(b"G")
                await trio.sleep(REQUEST_SECONDS / 4)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            answer.append(await peer.stream.receive_some())
            nursery.cancel_scope.cancel()
        assert answer[0].startswith(b"HTTP/1.1 408 ")
        assert REQUEST_SECONDS <= trio.current_time() - began < 2 * REQUEST_SECONDS


@pytest.mark.parametrize(("asks", "seconds"), [(False, REQUEST_SECONDS), (True, IDLE_SECONDS)])
async def test_a_silent_connection_ends(autojump_clock: MockClock, asks: bool, seconds: float) -> None:
    async with serving(HttpBroker(), serve) as served:
        peer = await served.connect()
        if asks:
            assert await is_alive(peer)
        began = trio.current_time()
        assert await peer.rest() == b""
        assert seconds <= trio.current_time() - began < seconds + 20


async def read_all(peer: Peer) -> None:
    while await peer.stream.receive_some():
        pass


async def test_connections_for_http_are_few_of_all_and_one_more_is_told_to_come_later() -> None:
    """All are busy, and their peers read: three with metrics, one with problems that are looked for."""
    broker = HttpBroker(slices=10**9, seglog_connections_max=16)
    async with serving(broker, serve) as served, trio.open_nursery() as nursery:
        peers = [await served.connect() for _ in range(4)]
        for peer in peers[:3]:
            await peer.stream.send_all(request("/metrics"))
            assert (await peer.stream.receive_some(1_000)).startswith(b"HTTP/1.1 200 ")
            nursery.start_soon(read_all, peer)
        await peers[3].stream.send_all(request("/healthz"))
        await broker.is_looking.wait()
        refused = await (await served.connect()).rest()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 5\r\n" in refused
        nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()
    assert broker.metrics.connections_ended["too_many_connections"] == 1


async def test_probes_are_answered_however_many_ask_for_metrics(mock_clock: MockClock) -> None:
    """Of forty connections for HTTP two are left for them. Time stands still: no page is cut, until its peer leaves."""
    broker = HttpBroker(slices=10_000, seglog_connections_max=160, socket_send_buffer_bytes=65_536)
    async with serving(broker, serve) as served:
        counts = broker.metrics.listener(WITHOUT_AUTHENTICATION.label).of("/metrics")
        statuses: Counter[bytes] = Counter()
        for number in range(40):
            peer = await served.connect()
            await peer.stream.send_all(request("/metrics"))
            while counts.requests <= number:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            if not SCRAPES_MAX <= number < 38:  # these wait for a place
                statuses[(await peer.stream.receive_some(1_000)).partition(b"\r\n")[0]] += 1
        assert statuses == {b"HTTP/1.1 200 OK": SCRAPES_MAX, b"HTTP/1.1 503 Service Unavailable": 2}
        for _ in range(5):
            assert await is_alive(await served.connect())
    assert broker.made < 500


async def test_probes_are_answered_when_all_connections_are_taken_by_clients() -> None:
    broker = HttpBroker(seglog_connections_max=16)
    broker.metrics.listener("native").connections += 16
    async with serving(broker, serve) as served:
        for _ in range(3):
            assert await is_alive(await served.connect())


async def test_whoever_reads_no_answer_keeps_nobody_out(autojump_clock: MockClock) -> None:
    broker = HttpBroker(seglog_connections_max=16, socket_send_buffer_bytes=65_536)
    async with serving(broker, serve) as served:
        for _ in range(4):
            peer = await served.connect()
            with trio.move_on_after(UNREAD_SECONDS):
                while True:
                    await peer.stream.send_all(request("/livez") * 100)
        await trio.sleep(UNREAD_SECONDS)
        assert await is_alive(await served.connect())
        assert broker.metrics.connections_ended == {"too_many_connections": 1}


@pytest.mark.parametrize("limit", [16, 4])
async def test_silent_connections_keep_nobody_out(limit: int) -> None:
    """One more takes the place of the one that has been idle the longest, at the limit of HTTP and at that of all."""
    broker = HttpBroker(seglog_connections_max=limit)
    async with serving(broker, serve) as served:
        places = 4 if limit == 16 else 1
        silent = [await served.connect() for _ in range(places)]
        for _ in range(20):
            await wait_all_tasks_blocked()
            assert await is_alive(await served.connect())
        for peer in silent:
            assert await peer.rest() == b""
        assert broker.metrics.connections_ended == {"too_many_connections": 20}


async def test_a_connection_that_asks_again_and_again_keeps_its_place_beside_silent_ones() -> None:
    async with serving(HttpBroker(seglog_connections_max=16), serve) as served:
        asking = await served.connect()
        for _ in range(20):
            assert await is_alive(asking)
            await served.connect()
            await wait_all_tasks_blocked()
        assert await is_alive(asking)


async def test_a_scraper_that_reads_nothing_costs_a_slice_and_holds_up_nobody(autojump_clock: MockClock) -> None:
    """A slice is made when the socket has taken the one before."""
    broker = HttpBroker(slices=10_000, socket_send_buffer_bytes=65_536)
    async with serving(broker, serve) as served:
        peer = await served.connect()
        await peer.stream.send_all(request("/metrics"))
        other = await served.connect()
        made = -1
        while made != broker.made:
            made = broker.made
            assert await is_alive(other)
            await trio.sleep(0.1)
        assert 0 < made < 500, "what fits into the buffers of two sockets, and one more"
        with trio.fail_after(10 * broker.config.seglog_connections_max_stall_ms / 1000):
            while not broker.metrics.connections_ended["slow_reader"]:  # noqa: ASYNC110 - nothing tells of it
                await trio.sleep(1)
        assert broker.made < 500
        assert len(broker.transfers) == 0


async def test_so_many_pages_are_made_at_a_time_and_the_next_waits(autojump_clock: MockClock) -> None:
    scrapes = Scrapes(CONNECTIONS_MAX)
    most = 0
    ended: list[int] = []

    async def scrape(number: int) -> None:
        nonlocal most
        async with scrapes.place():
            most = max(most, len(scrapes))
            await trio.sleep(1)
        ended.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3 * SCRAPES_MAX):
            nursery.start_soon(scrape, number)
            await trio.sleep(0.001)
        with trio.move_on_after(0.01):  # one that leaves while it waits
            async with scrapes.place():
                raise AssertionError
    assert most == SCRAPES_MAX
    assert ended == list(range(3 * SCRAPES_MAX)), "in their order"
    assert (len(scrapes), scrapes.waiting) == (0, 0)


@pytest.mark.parametrize("busy", [0, 2, 1_000])
async def test_a_page_waits_for_others_but_not_for_ever(busy: int) -> None:
    asked = 0

    def is_busy() -> bool:
        nonlocal asked
        asked += 1
        return asked <= busy

    await Scrapes(CONNECTIONS_MAX).turn(is_busy, trio.lowlevel.cancel_shielded_checkpoint)
    assert asked == min(busy + 1, TURNS_GIVEN_MAX)


async def test_the_loop_rests_before_each_part_of_a_page_unless_others_wait_for_a_place() -> None:
    scrapes = Scrapes(CONNECTIONS_MAX)
    scrapes.scrapes_max = 1
    rests: list[int] = []

    async def rest() -> None:
        rests.append(scrapes.waiting)

    async def wait() -> None:
        async with scrapes.place():
            pass

    async with trio.open_nursery() as nursery, scrapes.place():
        await scrapes.turn(lambda: False, rest)
        await scrapes.turn(lambda: False, rest)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert scrapes.waiting == 1
        await scrapes.turn(lambda: False, rest)
    assert rests == [0, 0]


async def test_a_page_whose_peer_reads_slowly_is_cut_once_others_wait(autojump_clock: MockClock) -> None:
    scrapes = Scrapes(CONNECTIONS_MAX)
    scrapes.scrapes_max = 1

    async with trio.open_nursery() as nursery:
        async with scrapes.place() as slow:
            await slow.send(partial(trio.sleep, 2 * PATIENCE_SECONDS))  # nobody waits

        async def wait() -> None:
            async with scrapes.place():
                pass

        async with scrapes.place() as slow:
            await slow.send(partial(trio.sleep, 3))
            nursery.start_soon(wait)
            began = trio.current_time()
            with pytest.raises(CutError, match="it reads too slowly"):
                await slow.send(trio.sleep_forever)
            assert trio.current_time() - began == pytest.approx(PATIENCE_SECONDS - 3)
