"""The stage of a standby: its pages, its socket, and how it gives way to serving, with a double of the broker."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.runtime import unix_sockets
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_broker.standby.pages import CONNECTIONS_MAX
from seglog_broker.standby.stage import stand_by
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.processes import free_port
from tests.unit.broker.backup.machines import Machines


class Process:
    """A process that stands by; ``is_serving`` once it was promoted."""

    def __init__(self, root: Path) -> None:
        self.machines = Machines(PosixFileSystem(), str(root))
        self.port = free_port()
        self.config = replace(
            self.machines.config,
            seglog_http_listen=f"127.0.0.1:{self.port}",
            seglog_backup_lag_ms=1,
            seglog_backup_lease_ms=0,
        )
        self.is_serving = False
        self.scope = trio.CancelScope()
        self.manager = ServiceManager()

    async def run(self) -> None:
        with self.scope:
            await stand_by(self.config, self.machines.fs, self.manager, self._serve)

    async def _serve(self, ready: Callable[[], object]) -> None:
        DirectoryLock(self.machines.fs, self.config.log_dir).release()  # which a broker takes
        self.is_serving = True
        ready()
        await trio.sleep_forever()

    async def asked(self, **request: object) -> dict[str, Any]:
        """The state that its socket answers; after a promotion the one at the end of that."""
        path = f"{self.config.log_dir}/{filenames.STANDBY_SOCKET}"
        while not self.machines.fs.exists(path):
            await trio.lowlevel.checkpoint()
        async with trio.SocketStream(trio.socket.from_stdlib_socket(unix_sockets.connect(path))) as stream:
            await stream.send_all(json.dumps(request).encode() + b"\n")
            state: dict[str, Any] = json.loads(b"".join([piece async for piece in stream]))
        if request["want"] == "status" or state["stage"] == "serving" or state["refused"]:
            return state
        while not (state["stage"] == "serving" or state["refused"]):
            await trio.lowlevel.checkpoint()
            state = await self.asked(want="status")
        return state

    async def page(self, request: str) -> str:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            await stream.send_all(f"{request}\r\nHost: x\r\n\r\n".encode())
            return (b"".join([piece async for piece in stream])).decode()


async def test_it_shows_its_state_serves_when_it_is_promoted_and_answers_afterwards_as_well(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            assert "--without-lease" in (await process.asked(want="promote"))["refused"]
            status = await process.asked(want="status")
            assert "has the state of 2023-11-14 22:13:20.000 UTC" in status["sentence"]
            assert status["stage"] == "standby"
            assert (await process.page("GET /livez HTTP/1.1")).startswith("HTTP/1.1 200 OK")
            ready = await process.page("GET /readyz HTTP/1.1")
            assert ready.startswith("HTTP/1.1 503 ")
            assert "standby of" in ready
            assert "seglog_standby_lag_seconds 0.0" in await process.page("GET /metrics HTTP/1.0")
            assert (await process.page("HEAD /metrics HTTP/1.1")).endswith("\r\n\r\n")
            for request, code in (("GET /x HTTP/1.1", 404), ("POST / HTTP/1.1", 405), ("\0\0\0\1", 400)):
                assert (await process.page(request)).startswith(f"HTTP/1.1 {code} ")
            idle = [await trio.open_tcp_stream("127.0.0.1", process.port) for _ in range(CONNECTIONS_MAX)]
            await wait_all_tasks_blocked()
            idle.append(await trio.open_tcp_stream("127.0.0.1", process.port))
            assert await idle[-1].receive_some() == b""  # one too many
            for stream in idle:
                await stream.aclose()
            done = await process.asked(want="promote", without_lease=True)
            assert "what was acknowledged after it is not here" in done["said"][0]
            assert (done["stage"], done["refused"]) == ("serving", "")
            assert process.is_serving
            with pytest.raises(OSError):
                await process.page("GET /livez HTTP/1.1")  # the port is the broker's
            assert await process.asked(want="promote") == done
            process.scope.cancel()
    assert not process.machines.fs.exists(f"{process.config.log_dir}/{filenames.STANDBY_SOCKET}")
    assert [line["event"] for line in logged if line["event"].startswith("promotion_re")] == ["promotion_refused"]
    async with trio.open_nursery() as nursery:  # the same command, started again: it serves at once
        again = Process.__new__(Process)
        again.__dict__ = process.__dict__ | {"scope": trio.CancelScope(), "is_serving": False}
        nursery.start_soon(again.run)
        while not again.is_serving:
            await trio.lowlevel.checkpoint()
        again.scope.cancel()


async def test_a_place_that_is_away_is_waited_for_also_amid_a_promotion(tmp_path: Path) -> None:
    process = Process(tmp_path)
    away = f"{process.machines.place}-away"
    process.machines.fs.rename(process.machines.place, away)
    with capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)

            async def come_back() -> None:
                while not any(line["event"] == "standby_held_up" for line in logged):
                    await trio.lowlevel.checkpoint()
                status = await process.asked(want="status")
                assert "has no state yet" in status["sentence"]
                assert "held up: " in status["sentence"]
                process.machines.fs.rename(away, process.machines.place)

            nursery.start_soon(come_back)
            done = await process.asked(want="promote", without_lease=True)
            assert done["stage"] == "serving"
            process.scope.cancel()
