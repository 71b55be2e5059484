"""What a fake broker answers to the doctor, which tests change as they like."""

import time
from typing import Any

from seglog_protocol.frames import encode_value
from seglog_protocol.messages import (
    API_VERSIONS,
    ConfigEntry,
    DescribeBrokerReply,
    DescribeBrokerRequest,
    HelloReply,
    HelloRequest,
    ListGroupsReply,
    ListGroupsRequest,
    MetricFamily,
    MetricSample,
    Request,
    SamplesReply,
    SamplesRequest,
)
from tests.unit.clients.fake_broker import Answer


def description(**changes: Any) -> DescribeBrokerReply:
    told: dict[str, Any] = {
        "config": {"seglog.connections.max": ConfigEntry("10000", "default")},
        "warnings": [],
        "listeners": [],
        "versions": {"seglogd": "1", "build": "sources", "python": "3.13.5", "kernel": "Linux"},
        "limits": {"open_files": 65536, "connections": 10_000, "processors": 2, "memory_bytes": 1 << 33},
        "now_ms": time.time_ns() // 1_000_000,
    }
    return DescribeBrokerReply(**(told | changes))


def greeting(broker: str, **more: Any) -> HelloReply:
    return HelloReply("seglog", broker, dict(API_VERSIONS), {"frame_bytes_max": 100 << 20}, **more)


class Sick:
    """What a fake broker answers to the doctor; tests change it."""

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {"log_dir": "/nowhere/at/all", "partitions": 1}
        self.described: dict[str, Any] = {}
        self.clock_offset = 0.0
        self.disk: dict[str, float] = {"free_bytes": 50e9, "size_bytes": 100e9, "full": 0, "free_inodes": 1e6}

    def answer(self, request: Request, _: memoryview) -> Answer | None:
        match request:
            case HelloRequest():
                return greeting("seglogd/0.0.1", **self.hello)
            case ListGroupsRequest():
                return ListGroupsReply([], 0, more=False)
            case SamplesRequest():
                families = [
                    MetricFamily(f"seglog_disk_{name}", "gauge", "", [], [MetricSample([], value)]).to_wire()
                    for name, value in self.disk.items()
                ]
                return SamplesReply(), encode_value(families)
            case DescribeBrokerRequest():
                now = round((time.time() + self.clock_offset) * 1000)
                return description(now_ms=now, **self.described)
        return None
