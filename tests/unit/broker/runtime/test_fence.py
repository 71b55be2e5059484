import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.runtime.fence import Fence, FenceError, LeaseEndedError
from tests.unit.broker.brokers import Stopwatch


@pytest.fixture
def now() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
def fence(now: Stopwatch) -> Fence:
    return Fence(lambda: int(now.now))


def test_it_is_open_before_the_moment_until_which_the_lease_is_held(fence: Fence, now: Stopwatch) -> None:
    assert not fence.is_open
    fence.hold(200)
    fence.hold(150)  # of a process that came after, and counts from another moment
    now.now = 199
    assert fence.is_open
    now.now = 200
    assert not fence.is_open
    fence.hold(201)
    assert fence.is_open


def test_a_lapse_is_logged_once_when_something_was_refused_and_its_end(fence: Fence, now: Stopwatch) -> None:
    with capture_logs() as logged:
        fence.refusal()
        assert logged == [], "the start waits for it"
        fence.hold(200)
        now.now = 300
        fence.wait_for("the place is away")
        assert [type(fence.refusal()) for _ in range(3)] == [FenceError] * 3
        fence.hold(400)
        fence.hold(500)
    told = [(entry["event"], entry.get("reason")) for entry in logged]
    assert told == [("lease_lapsed", "the place is away"), ("lease_renewed", None)]


async def test_a_start_waits_and_tells_why(fence: Fence) -> None:
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fence.wait_open, told.append)
        await wait_all_tasks_blocked()
        for reason in ("the lease of first.example", "the lease of first.example", "the place is away"):
            fence.wait_for(reason)
            await wait_all_tasks_blocked()
        fence.hold(100)  # it is over already
        await wait_all_tasks_blocked()
        assert told[:3] == [
            "the place of the backup has not answered yet",
            "the lease of first.example",
            "the place is away",
        ]
        assert nursery.child_tasks
        fence.hold(200)


async def test_what_is_lost_is_lost_for_ever(fence: Fence) -> None:
    fence.hold(200)
    with pytest.RaisesGroup(pytest.RaisesExc(LeaseEndedError, match=r"^it was taken over\b")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fence.watch)
            await wait_all_tasks_blocked()
            fence.end("it was taken over")
            fence.end("and then something else")
            assert not fence.is_open
            assert fence.waits_for == "it was taken over", "which is what is logged"
            fence.hold(300)
            assert not fence.is_open
