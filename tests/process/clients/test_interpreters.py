"""Clients in interpreters of their own: forks, an interrupt at any moment, and the end of an interpreter."""

import signal
import subprocess
import sys
from typing import Final

import seglog
from seglog.testing import Broker
from tests.processes import clean_environment, finished
from tests.support import each_case
from tests.unit.clients.fake_broker import FakeBroker, fake_broker

CHILD = """
import os, sys, time, seglog

client = seglog.connect(sys.argv[1])
producer = client.producer("t", linger_ms=float(sys.argv[2]))
producer.send(b"parent 0").result(30)
consumer = client.consumer("t", start=0)
records = iter(consumer)
assert next(records).value == b"parent 0"

def refused(name, call):
    try:
        call()
    except seglog.ClientError as error:
        assert type(error) is seglog.ClientError, repr(error)
        assert "cannot be used after a fork" in str(error) and "seglog.connect() again" in str(error), str(error)
    else:
        raise AssertionError(f"{name} worked in the child")

if sys.argv[3] == "a send under way":
    import threading
    threading.Thread(target=lambda: [producer.send(b"x" * 1000) for _ in range(3_000)], daemon=True).start()

pid = os.fork()
if pid == 0:
    refused("topics", client.topics)
    refused("ping", client.ping)
    refused("offsets", lambda: client.offsets("t"))
    refused("producer", lambda: client.producer("t"))
    refused("consumer", lambda: client.consumer("t"))
    refused("send", lambda: producer.send(b"child"))
    refused("flush", producer.flush)
    refused("unacknowledged", lambda: producer.unacknowledged)
    refused("read", lambda: list(consumer))
    refused("seek", lambda: consumer.seek("latest"))
    # Leaving the blocks lets go of the child's copies, and of nothing else.
    producer.close()
    consumer.__exit__(None, None, None)
    client.__exit__(ValueError, ValueError("x"), None)
    with seglog.connect(sys.argv[1]) as mine:  # what the sentence says to do
        with mine.producer("t") as other:
            other.send(b"child")
    sys.exit(7)  # through atexit: what the parent has not closed is none of the child's business
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
producer.send(b"parent 1").result(30)
assert client.topics()[0].name == "t"
consumer.seek({0: 0})
assert next(iter(consumer)).value == b"parent 0"
client.close()
print("the parent went on")
"""


@each_case("linger_ms", [0, 5])
@each_case("meanwhile", ["nothing", "a send under way"])
def test_a_forked_child_is_refused_and_the_parent_goes_on(linger_ms: float, meanwhile: str) -> None:
    with fake_broker() as broker:
        done = run_python(CHILD, broker.address, str(linger_ms), meanwhile)
        assert (done.returncode, done.stdout) == (0, "the parent went on\n"), done.stderr
        values = [value for value in broker.values() if value and not value.startswith(b"x")]
        assert values == [b"parent 0", b"child", b"parent 1"]


INTERRUPTED = """
import signal, sys, seglog

signal.signal(signal.SIGALRM, signal.default_int_handler)
client = seglog.connect(sys.argv[1])
producer = client.producer("t", linger_ms=0)
producer.send(b"-1").result(30)  # what is imported on the way is not ours to keep whole
for number in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + number / 20_000)
        while True:
            assert len(client.offsets("two")) == 2
            producer.send(b"%d" % number)
    except KeyboardInterrupt:
        pass
    assert len(client.offsets("t")) == 1, "the next answer is to the next question"
producer.flush()
client.close()
print("in step")
"""


def test_an_interrupt_at_any_moment_leaves_the_connection_in_step() -> None:
    with fake_broker(topics={"t": 1, "two": 2}) as broker:
        done = run_python(INTERRUPTED, broker.address)
        assert (done.returncode, done.stdout) == (0, "in step\n"), done.stderr
        arrived = list(dict.fromkeys(int(value or b"") for value in broker.values()))
        assert arrived == sorted(arrived), "some of them twice, but in order"


def run_python(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return finished([sys.executable, "-W", "default", "-c", program, *arguments])


def test_a_producer_never_closed_is_flushed_at_interpreter_exit_with_a_warning(broker: FakeBroker) -> None:
    program = """
import sys, seglog
client = seglog.connect(sys.argv[1])
client.producer("t", linger_ms=3_600_000).send(b"last words")
"""
    done = run_python(program, broker.address)
    assert done.returncode == 0
    assert "producer of t was never closed" in done.stderr
    assert broker.values() == [b"last words"]


FOLLOWING: Final = """
import asyncio
import sys

import uvloop

import seglog.asyncio


async def main() -> None:
    async with (
        seglog.asyncio.connect(sys.argv[1]) as client,
        client.producer("out", linger_ms=3_600_000) as producer,
        client.consumer("in", group="g") as consumer,
    ):
        async for record in consumer:
            await producer.send(record.value)
            print(record.offset, flush=True)


{"asyncio": asyncio, "uvloop": uvloop}[sys.argv[2]].run(main())
"""


@each_case("loop", ["asyncio", "uvloop"])
def test_ctrl_c_leaves_the_group_and_says_what_was_not_sent(loop: str) -> None:
    with Broker() as broker, seglog.connect(broker.address) as client:
        for topic in ("in", "out"):
            client.create_topic(topic)
        with client.producer("in") as producer:
            for number in range(3):
                producer.send(str(number))
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", FOLLOWING, broker.address, loop]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
        ) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
        assert "not acknowledged: 3 records to out" in errors
        assert "never retrieved" not in errors
        assert "Warning" not in errors
        assert client.describe_group("g").members == []
        assert [found.offset for found in client.group_offsets("g")] in ([2], [3])
        assert client.offsets("out")[0].latest == 0
