"""The broker's certificate while it serves: its end is told in good time, and SIGHUP replaces it."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trustme
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config import ConfigSources, load_config, served_listeners
from seglog_broker.reloading import reload
from seglog_broker.security.tls import ServerTls, load_all_tls
from seglog_broker.server import TASKS
from tests.unit.broker.tasks.living_broker import NO_BALLAST, START_MS, LoopClock, TimedDisk, living

START: Final = datetime.fromtimestamp(START_MS / 1000, UTC)
DAY: Final = 86_400


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return tmp_path / "server.pem"


def flags_of(pem: Path) -> list[str]:
    return [f"ssl.keystore.location={pem}", "listeners=SSL://127.0.0.1:0"]


def issue(authority: trustme.CA, pem: Path, days: float) -> None:
    """Write a certificate that ends so many days after the start of the clock."""
    issued = authority.issue_cert(
        "localhost", not_before=START - timedelta(days=1), not_after=START + timedelta(days=days)
    )
    pem.write_bytes(issued.private_key_and_cert_chain_pem.bytes())


def damage(pem: Path) -> None:
    pem.write_bytes(pem.read_bytes()[:500])


def loaded(pem: Path) -> ServerTls:
    return ServerTls(load_all_tls(load_config(None, "", {}, flags_of(pem))[0]))


async def test_an_end_that_is_near_is_told_once_a_day(
    clock: LoopClock, fs: TimedDisk, authority: trustme.CA, pem: Path
) -> None:
    """From thirty days before on, in the log and by hello; as an error once it has come."""
    issue(authority, pem, days=32)
    with capture_logs() as logged:
        async with (
            living(fs, clock, *flags_of(pem), tasks=(), tls=loaded(pem)) as broker,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(TASKS["certificates"], broker)
            await trio.sleep(1.5 * DAY)
            assert broker.hello().problems == []
            assert [entry for entry in logged if entry["event"] == "certificate_problem"] == []
            await trio.sleep(2 * DAY)
            [problem] = broker.hello().problems
            assert "ends on" in problem
            await trio.sleep(29 * DAY)
            [problem] = broker.hello().problems
            assert "ended on" in problem
            issue(authority, pem, days=99)
            await reload(broker, sources_of(pem, None))
            assert broker.hello().problems == []
            nursery.cancel_scope.cancel()
    told = [entry["log_level"] for entry in logged if entry["event"] == "certificate_problem"]
    assert told == ["warning"] * 30 + ["error"]


def context_of(broker: Broker) -> ssl.SSLContext:
    """That for the next connection."""
    assert broker.tls is not None
    tls = broker.tls.of(served_listeners(broker.config)[0])
    assert tls is not None
    return tls.context


def sources_of(pem: Path, content: str | None) -> ConfigSources:
    """Those of a broker with this certificate, and with a configuration file unless ``content`` is None."""
    file = pem.parent / "seglogd.toml"
    file.write_text(content or "", encoding="utf-8")
    flags = ["log.dir=/data", "log.initial.task.delay.ms=0", NO_BALLAST, *flags_of(pem)]
    return ConfigSources("" if content is None else str(file), {}, flags)


async def reloaded(broker: Any, sources: ConfigSources) -> list[Any]:
    with capture_logs() as logged:
        await reload(broker, sources)
    return [entry for entry in logged if entry["event"] != "config_warning"]


@pytest.mark.parametrize("with_file", [False, True])
async def test_a_reload_takes_the_certificate_that_is_there_now(
    clock: LoopClock, fs: TimedDisk, authority: trustme.CA, pem: Path, with_file: bool
) -> None:
    """Also where the broker has no configuration file."""
    issue(authority, pem, days=40)
    sources = sources_of(pem, "" if with_file else None)
    async with living(fs, clock, *flags_of(pem), tasks=()) as broker:
        tls = broker.tls = loaded(pem)
        before = context_of(broker)
        issue(authority, pem, days=80)
        [entry, *rest] = await reloaded(broker, sources)
        assert entry["event"] == "certificate_reloaded"
        assert entry["names"] == ("localhost",)
        assert [other["event"] for other in rest] == ["configuration_reloaded"] * with_file
        assert context_of(broker) is not before
        assert tls.certificates[0].ends_ms == START_MS + 80 * DAY * 1000


@pytest.mark.parametrize("with_file", [False, True])
async def test_a_certificate_that_cannot_be_used_changes_nothing(
    clock: LoopClock, fs: TimedDisk, authority: trustme.CA, pem: Path, with_file: bool
) -> None:
    issue(authority, pem, days=40)
    sources = sources_of(pem, '"num.partitions" = 7\n' if with_file else None)
    async with living(fs, clock, *flags_of(pem), tasks=()) as broker:
        broker.tls = loaded(pem)
        before = context_of(broker)
        damage(pem)
        [entry] = await reloaded(broker, sources)
        assert entry["event"] == ("configuration_not_reloaded" if with_file else "certificate_not_reloaded")
        assert entry["log_level"] == "error"
        assert str(pem) in entry["reason"]
        assert context_of(broker) is before
        assert broker.config.num_partitions == 1
        what = "the configuration" if with_file else "the certificate"
        [(_, problem)] = broker.problems
        assert problem.startswith(f"{what} was not reloaded, so that the one before is still in force: ")
        issue(authority, pem, days=60)
        await reloaded(broker, sources)
        assert list(broker.problems) == []
