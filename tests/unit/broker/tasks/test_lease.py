"""The task of the continuous backup tells the fence what becomes of the lease."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.backup.agent_messages import LeaseAwaited, LeaseHeld, LeaseLost, Trouble
from seglog_broker.runtime.fence import Fence
from tests.unit.broker.tasks.agents import TO, Started, backing_up

ONLY: set[str] = set()
FLAGS = (TO, "seglog.backup.lease.ms=3000")
FOR_EVER = 1 << 62


def fence_of(broker: Broker) -> Fence:
    assert broker.fence is not None
    return broker.fence


async def test_the_lease_has_one_holder_whatever_process_keeps_it(broker: Broker) -> None:
    async with backing_up(broker) as started:
        agent = await started.agent()
        assert agent.begin.lease_ms == 3000
        assert agent.begin.incarnation
        agent.say(LeaseAwaited("the lease of first.example"))
        await wait_all_tasks_blocked()
        assert (fence_of(broker).is_open, fence_of(broker).waits_for) == (False, "the lease of first.example")
        agent.say(LeaseHeld(FOR_EVER))
        agent.die()
        again = await started.agent(1)
        assert again.begin.incarnation == agent.begin.incarnation
        assert fence_of(broker).is_open


async def ended(broker: Broker, started: Started, said: LeaseLost | Trouble) -> str:
    agent = await started.agent()
    agent.say(LeaseHeld(FOR_EVER))
    agent.say(said)
    agent.die()
    await wait_all_tasks_blocked()
    await trio.sleep(3600)
    assert len(started.agents) == 1, "no other one is started"
    assert broker.backup is not None
    began = trio.current_time()
    await broker.backup.finish()
    assert trio.current_time() == began, "the stop waits for nothing"
    assert not fence_of(broker).is_open
    return fence_of(broker).end_reason


@pytest.mark.parametrize("said", [LeaseLost("it was taken over"), Trouble("its store lies", is_final=True)])
async def test_what_is_lost_ends_the_broker_with_its_sentence(broker: Broker, said: LeaseLost | Trouble) -> None:
    async with backing_up(broker) as started:
        assert await ended(broker, started, said) == said.reason


async def test_a_trouble_that_may_end_does_not(broker: Broker) -> None:
    async with backing_up(broker) as started:
        agent = await started.agent()
        agent.say(LeaseHeld(FOR_EVER))
        agent.say(Trouble("the place is away"))
        await wait_all_tasks_blocked()
        assert fence_of(broker).is_open
