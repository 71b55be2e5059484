"""``serve`` hands its faults to both listeners, and tells them of its broker."""

from functools import partial

import pytest
import trio

from seglog_broker.config import load_config
from seglog_broker.server import serve
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_broker.testing.request_faults import RequestFaults
from seglog_protocol.errors import UnknownGroupError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import CreateTopicRequest
from tests.processes import free_port
from tests.unit.broker.listeners.fake_broker import Peer
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer

pytestmark = pytest.mark.trio


async def test_a_whole_broker_has_faults_on_both_ports_also_when_it_is_started_again() -> None:
    faults = RequestFaults()
    fs = ForgetfulFileSystem()
    native, kafka = free_port(), free_port()
    config, _ = load_config(None, "", {}, ["log.dir=/data", f"listeners=PLAINTEXT://127.0.0.1:{kafka}"])
    run = partial(
        serve, config, fs=fs, clock=SystemClock(), offload=InlineOffload(), listen=f"127.0.0.1:{native}", faults=faults
    )
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            with pytest.raises(UnknownGroupError):
                faults.rebalance("workers")
            mine = faults.fail_next("create_topic", "DISK_FULL", topic="plain")
            theirs = faults.fail_next("CreateTopics", ErrorCode.KAFKA_STORAGE_ERROR, topic="plain")
            peer = await Peer(await trio.open_tcp_stream("127.0.0.1", native)).greet()
            await peer.send(1, CreateTopicRequest("plain", 1))
            assert (await peer.receive()).header["error"]["code"] == "DISK_FULL"
            other = KafkaPeer(await trio.open_tcp_stream("127.0.0.1", kafka))
            topic = messages.CreateTopicsRequest.CreatableTopic(name="plain", num_partitions=1, replication_factor=1)
            await other.send(messages.CreateTopicsRequest(topics=[topic]))
            [created] = (await other.receive(messages.CreateTopicsResponse)).topics
            assert created.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (mine.met, theirs.met) == (1, 1)
            assert faults.cut_connections() == 2
            for stream in (peer.stream, other.stream):
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some()
                await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()
    assert fs.open_files == []
