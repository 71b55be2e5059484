"""A stream of Redis as a queue, and workers that send XACK and XREADGROUP at once."""

import re
from typing import Final

from benchmarks.group_wire import Replies
from benchmarks.harness import BenchmarkError
from benchmarks.peers.cases import Ack
from benchmarks.peers.sides import Redis, redis_command, redis_fsync
from benchmarks.queues.common import JOB, QUEUE, Queue, group_of

_FIRST_ID: Final = 1_000_001
"""Of the first job; all are equally long, and so are jobs."""

_ID_BYTES: Final = len(b"$9\r\n1-%d\r\n" % _FIRST_ID)
_JOB_HEAD: Final = b"*2\r\n"
_JOB_BYTES: Final = len(_JOB_HEAD) + _ID_BYTES + len(b"*2\r\n$5\r\nvalue\r\n$%d\r\n%s\r\n" % (len(JOB), JOB))
_JOBS_HEAD: Final = re.compile(rb"(?::\d+\r\n)?\*1\r\n\*2\r\n\$10\r\nbench-jobs\r\n\*(\d+)\r\n")
_NO_JOBS: Final = b"*-1\r\n"


class RedisReplies(Replies):
    """The one answer that is awaited: that to XREADGROUP, behind that to the XACK before it."""

    def split(self, held: bytes) -> tuple[list[bytes], bytes]:
        """``Replies.split``."""
        if held.startswith(b"-"):
            raise BenchmarkError(f"Redis answered {held!r:.300}")
        head = _JOBS_HEAD.match(held)
        is_whole = head is not None and len(held) == head.end() + int(head[1]) * _JOB_BYTES
        return ([held], b"") if is_whole or held.endswith(_NO_JOBS) else ([], held)


class RedisWorker:
    """A ``Talk`` of a consumer of the group ``run``, which is there already."""

    framing: Final = RedisReplies

    def __init__(self, number: int, run: int, at_once: int) -> None:
        reading = ("XREADGROUP", "GROUP", group_of(run), f"worker-{number}", "COUNT", str(at_once))
        self._fetch = redis_command(*reading, "STREAMS", QUEUE, ">")
        self._acknowledge = redis_command("XACK", QUEUE, group_of(run)).removeprefix(b"*3\r\n")
        self._held: list[bytes] = []

    def begin(self, replies: Replies) -> None:
        """``Talk.begin``: hold the first jobs."""
        self.answered(replies.ask_frame(self._fetch))

    def request(self) -> bytes | None:
        """``Talk.request``: acknowledge what is held, and read."""
        held = self._held
        return b"".join((b"*%d\r\n" % (3 + len(held)), self._acknowledge, *held, self._fetch)) if held else None

    def answered(self, reply: bytes) -> int:
        """``Talk.answered``."""
        count, size = len(self._held), len(reply)
        first = size - size // _JOB_BYTES * _JOB_BYTES + len(_JOB_HEAD)
        self._held = [reply[at : at + _ID_BYTES] for at in range(first, size, _JOB_BYTES)]
        return count


class RedisQueue(Queue):
    """A stream, and a group for each run."""

    talk = "jobs, redis"

    def __init__(self, redis: Redis, jobs: int, ack: Ack) -> None:
        super().__init__(redis.server, redis.load, jobs)
        self._ask = redis.ask
        redis.ask("DEL", QUEUE)
        redis.ask("CONFIG", "SET", "appendfsync", redis_fsync(ack))
        add = "for id = ARGV[1], ARGV[1] + ARGV[2] - 1 do redis.call('XADD', KEYS[1], '1-' .. id, 'value', ARGV[3]) end"
        redis.ask("EVAL", add, "1", QUEUE, str(_FIRST_ID), str(jobs), JOB.decode())

    def begin(self, group: str) -> None:
        """``Queue.begin``."""
        self._ask("XGROUP", "CREATE", QUEUE, group, "0")
