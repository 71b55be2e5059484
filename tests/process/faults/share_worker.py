"""A worker of a share group over Kafka's wire: ``python -m tests.process.faults.share_worker PORT NAME AT_ONCE PAUSE``.

It tells, a line each, what it does and when (nanoseconds of the machine's monotonic clock): ``got`` with the time of
the request, first and last offset and the delivery count; ``accepts`` before records are accepted, ``accepted`` behind
the answer; ``refused`` with the error. A job whose offset is a multiple of POISON is rejected, or released until it is
given up. Whatever fails, it begins again, as a new member.
"""

import os
import random
import sys
import time
import uuid
from typing import Any, Final

from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.kafka_cases import topic_ids
from tests.interop.kafka_wire import Wire, plain, request

GROUP: Final = "chaos"
TOPIC: Final = "jobs"
POISON: Final = 97
ACCEPT, RELEASE, REJECT = 1, 2, 3
_WAIT_MS: Final = 500
_MEMBER_SECONDS: Final = 2
"""Between heartbeats."""


class BeginAgainError(Exception):
    """The member, or its session, is not what the broker has."""


def is_poison(offset: int) -> bool:
    """Whether no worker can do the job."""
    return offset % POISON == 0


def tell(*what: object) -> None:
    """Write a line, of which a kill leaves nothing or all."""
    os.write(1, (" ".join(map(str, what)) + "\n").encode())


class Worker:
    """One member of the group, on one connection, in one share session."""

    def __init__(self, port: int, name: str, at_once: int, pause: float) -> None:
        self._wire = Wire(port)
        self._dice = random.Random(name)
        self._names = {"group_id": GROUP, "member_id": str(uuid.uuid4())}
        self._at_once = at_once
        self._pause = pause
        self._epoch = 0
        self._member_epoch = 0
        self._beaten = 0.0
        self._topic_id = topic_ids(self._wire)[TOPIC]

    def run(self) -> None:
        """Work until something is wrong."""
        while True:
            if time.monotonic() - self._beaten > _MEMBER_SECONDS:
                self._beat()
            asked = time.monotonic_ns()
            acquired = self._fetch([])
            while acquired:
                for each in acquired:
                    tell("got", asked, each["first_offset"], each["last_offset"], each["delivery_count"])
                time.sleep(self._pause)
                batches = [self._batch(each["first_offset"], each["last_offset"]) for each in acquired]
                asked = time.monotonic_ns()
                acquired = self._settle(batches)

    def _beat(self) -> None:
        topics = None if self._member_epoch else [TOPIC]
        answer = self._ask("ShareGroupHeartbeat", 1, member_epoch=self._member_epoch, subscribed_topic_names=topics)
        self._member_epoch, self._beaten = answer["member_epoch"], time.monotonic()

    def _batch(self, first: int, last: int) -> dict[str, Any]:
        types = [
            ACCEPT if not is_poison(offset) else REJECT if offset // POISON % 2 else RELEASE
            for offset in range(first, last + 1)
        ]
        return {"first_offset": first, "last_offset": last, "acknowledge_types": types}

    def _settle(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Acknowledge, alone or with the next fetch; what that has acquired."""
        for batch in batches:
            tell("accepts", time.monotonic_ns(), batch["first_offset"], batch["last_offset"])
        acquired = []
        if self._dice.random() < 0.5:
            acquired = self._fetch(batches)
        else:
            answer = self._in_session("ShareAcknowledge", batches)
            self._judge([part["error_code"] for topic in answer["responses"] for part in topic["partitions"]])
        for batch in batches:
            tell("accepted", time.monotonic_ns(), batch["first_offset"], batch["last_offset"])
        return acquired

    def _fetch(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        limits = {"max_wait_ms": _WAIT_MS, "min_bytes": 1, "max_bytes": 1 << 20, "share_acquire_mode": 1}
        counts = {"max_records": self._at_once, "batch_size": self._at_once}
        answer = self._in_session("ShareFetch", batches, **limits, **counts)
        found = [part for topic in answer["responses"] for part in topic["partitions"]]
        self._judge([part["acknowledge_error_code"] for part in found])
        self._judge([part["error_code"] for part in found])
        return [each for part in found for each in part["acquired_records"]]

    def _in_session(self, api: str, batches: list[dict[str, Any]], **fields: Any) -> Any:
        partitions = [{"partition_index": 0, "acknowledgement_batches": batches}]
        topics = [{"topic_id": self._topic_id, "partitions": partitions}]
        answer = self._ask(api, 2, share_session_epoch=self._epoch, topics=topics, **fields)
        self._epoch += 1
        return answer

    def _ask(self, api: str, version: int, **fields: Any) -> Any:
        answer = plain(self._wire.ask(request(api, {**self._names, **fields}), version))
        if answer is None:
            raise BeginAgainError("the connection was closed")
        self._judge([answer["error_code"]])
        return answer

    @staticmethod
    def _judge(codes: list[int]) -> None:
        if any(codes):
            raise BeginAgainError(ErrorCode(max(codes)).name)


def main(port: str, name: str, at_once: str, pause: str) -> None:
    """Until it is killed."""
    while True:
        try:
            Worker(int(port), name, int(at_once), float(pause)).run()
        except (BeginAgainError, OSError, KeyError) as error:
            tell("refused", time.monotonic_ns(), type(error).__name__, str(error).replace(" ", "_"))
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
