"""The blocking client in a process of its own: what it produces and consumes in so many seconds, as JSON.

Its packages are those that PYTHONPATH names, so that two builds of the client can take turns.
"""

import json
import sys
import time
from typing import Final

import seglog
from benchmarks.batches import values
from seglog_protocol import records

_TOPIC: Final = "bench-client-run"


def main(address: str, count: int) -> dict[str, float | str]:
    """Seconds and processor time of it to produce ``count`` records until the last ack (os), and to consume them."""
    contents = values(count)
    keys = [b"%012d" % (number * 7919) for number in range(count)]  # each hashed, because none comes again
    measured: dict[str, float | str] = {"records": records.__file__}
    with seglog.connect(address) as client:
        client.create_topic(_TOPIC, 1)
        began = time.perf_counter(), time.process_time()
        with client.producer(_TOPIC, ack="os") as producer:
            for value in contents:
                producer.send(value)
        _note(measured, "produce", began)
        began = time.perf_counter(), time.process_time()
        with client.consumer(_TOPIC) as consumer:
            found = sum(1 for _ in consumer)
        _note(measured, "consume", began)
        began = time.perf_counter(), time.process_time()
        with client.producer(_TOPIC, ack="os") as producer:
            for key, value in zip(keys, contents, strict=True):
                producer.send(value, key)
        _note(measured, "produce with keys", began)
        client.delete_topic(_TOPIC)
    if found != count:
        raise SystemExit(f"{count} records were acknowledged, {found} came back")
    return measured


def _note(measured: dict[str, float | str], what: str, began: tuple[float, float]) -> None:
    wall, processor = began
    measured[what] = time.perf_counter() - wall
    measured[f"{what}, processor time"] = time.process_time() - processor


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
