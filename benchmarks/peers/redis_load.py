"""Appends to a Redis Stream through redis-py. ``python -m benchmarks.peers.redis_load``; jobs as in ``load``.

The commands are packed once, by the client, and sent over its connections; the client parses every reply. Each window
of ``depth`` commands on each connection is sent and then read to its end.
"""

import json
import sys
import time
from base64 import b64decode
from contextlib import ExitStack
from typing import Any, Final

import redis

STREAM: Final = "bench"
_SECONDS_MAX: Final = 60
_REWRITE_PAUSE_SECONDS: Final = 0.05


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Append until the time or the bytes are over; raises where not all that was acknowledged is there."""
    payload, depth = b64decode(job["payload"]), job["depth"]
    with redis.Redis(port=job["port"], socket_timeout=_SECONDS_MAX) as admin, ExitStack() as stack:
        admin.config_set("appendfsync", job["appendfsync"])
        admin.delete(STREAM)
        connections: list[Any] = []  # their class has methods without types
        for _ in range(job["connections"]):
            pool = redis.ConnectionPool(port=job["port"], max_connections=1, socket_timeout=_SECONDS_MAX)
            stack.callback(pool.disconnect)
            connections.append(pool.get_connection())
        one = b"".join(connections[0].pack_command("XADD", STREAM, "*", "v", payload))
        window, size = [one * depth], depth * len(connections)
        windows_max = max(1, job["bytes_max"] // (len(one) * size))
        answered = windows = 0
        cpu, clock = time.process_time(), time.perf_counter
        began = now = clock()
        ends = began + job["seconds"]
        while now < ends and windows < windows_max:
            for connection in connections:
                connection.send_packed_command(window, check_health=False)
            for connection in connections:
                for _ in range(depth):
                    connection.read_response()
            answered += size
            windows += 1
            now = clock()
        cpu = time.process_time() - cpu
        stored = admin.xlen(STREAM)
        if stored != answered:
            raise redis.RedisError(f"{answered} appends were acknowledged, the stream has {stored} entries")
        _forget(admin)
    return {"answered": answered, "seconds": now - began, "client_cpu_seconds": cpu}


def _forget(admin: redis.Redis) -> None:
    """Drop the stream, and from the append-only file what it took there, before the next one is measured."""
    admin.delete(STREAM)
    _wait_for_rewrite(admin)
    admin.bgrewriteaof()
    _wait_for_rewrite(admin)


def _wait_for_rewrite(admin: redis.Redis) -> None:
    while True:
        state: Any = admin.info("persistence")
        if not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
            return
        time.sleep(_REWRITE_PAUSE_SECONDS)


def main() -> None:
    """Until stdin ends. A job that fails is answered with the reason."""
    for line in sys.stdin:
        try:
            found = run(json.loads(line))
        except (redis.RedisError, OSError) as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
