"""Progress of a query or a job, committed to a group."""

from seglog.client import connect
from seglog_protocol.errors import UnknownMemberError
from seglog_protocol.messages import CommitOffsetsRequest, Request
from seglog_spark.group_progress import AGAIN_SECONDS, GroupProgress
from tests.spark.fake_log import tp
from tests.unit.clients.fake_broker import Answer, fake_broker
from tests.unit.clients.fake_groups import FakeGroups


def test_progress_is_committed_and_a_refusal_is_told_once() -> None:
    with fake_broker(topics={"t": 2}) as broker, connect(broker.address) as client:
        groups = FakeGroups(broker)
        broker.script = groups.answer
        progress = GroupProgress(client, "etl")
        assert progress.commit({tp("t-0"): 5, tp("t-1"): 7}) is None
        assert groups.committed("etl") == {("t", 0): 5, ("t", 1): 7}

        def refuse(request: Request, payload: memoryview) -> Answer | None:
            if isinstance(request, CommitOffsetsRequest):
                return UnknownMemberError("the group has members", group="etl")
            return groups.answer(request, payload)

        broker.script = refuse
        assert progress.commit({tp("t-0"): 6}) == "progress is not committed to group etl: the group has members"
        assert progress.commit({tp("t-0"): 7}) is None, "told once"
        broker.script = groups.answer
        assert progress.commit({tp("t-0"): 8}) is None
        assert groups.committed("etl") == {("t", 0): 8, ("t", 1): 7}
        broker.script = refuse
        assert progress.commit({tp("t-0"): 9}) is not None, "told again when it had worked meanwhile"


def test_what_stays_the_same_is_committed_again_before_it_expires() -> None:
    now = 0.0
    with fake_broker(topics={"t": 2}) as broker, connect(broker.address) as client:
        broker.script = FakeGroups(broker).answer
        progress = GroupProgress(client, "etl", lambda: now)
        for _ in range(3):
            assert progress.commit({tp("t-0"): 5}) is None
        assert broker.asked(CommitOffsetsRequest) == 1
        now += AGAIN_SECONDS
        assert progress.commit({tp("t-0"): 5}) is None
        assert broker.asked(CommitOffsetsRequest) == 2
        assert progress.commit({tp("t-0"): 6}) is None
        assert broker.asked(CommitOffsetsRequest) == 3
