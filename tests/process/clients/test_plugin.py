"""The fixtures for pytest, in suites of their own: what tests get, what failed ones show, what is said of mistakes."""

import importlib.util
import re
from typing import Any, Final

import pytest

from seglog.testing import Broker, plugin, watched
from seglog.testing.watched import Watched
from tests.support import each_case

pytest_plugins = ["pytester"]

INI: Final = """
[pytest]
addopts = --strict-markers --strict-config -p no:cacheprovider -p no:asyncio -p no:anyio -p no:randomly
filterwarnings = error
seglog_memory = true
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty suite, whose brokers are in memory."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeini(INI)
    return pytester


def outcome(result: pytest.RunResult, **counts: int) -> str:
    """What a run printed, which came out as ``counts``."""
    result.assert_outcomes(**counts)
    return result.stdout.str()


# --- It is in every run -----------------------------------------------------------------------------------------------


def test_it_imports_nothing_before_a_fixture_is_used(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
        import sys
        def pytest_sessionfinish():
            print("LOADED", *sorted(sys.modules))
        """
    )
    suite.makepyfile("def test_it(): assert True")
    result = suite.runpytest_subprocess("-s", "-p", "no:trio")
    loaded = re.search("LOADED (.*)", outcome(result, passed=1))
    assert loaded is not None
    ours = {name for name in loaded[1].split() if name.startswith("seglog")}
    assert ours == {"seglog", "seglog.testing", "seglog.testing.plugin"}
    assert {"trio", "structlog", "numpy", "msgspec"}.isdisjoint(loaded[1].split())


def test_without_the_extra_it_does_no_harm_and_says_what_is_missing(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makeconftest("import sys; sys.modules['trio'] = None")
    suite.makepyfile("def test_plain(): pass\ndef test_it(seglog_topic): pass\ndef test_own(seglog_own_broker): pass")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = suite.runpytest_subprocess("-p", "seglog.testing.plugin")
    printed = outcome(result, passed=1, errors=2)
    needed = "needs the package trio, which is missing: pip install 'seglog[testing]'"
    assert all(printed.count(f"\nthe fixture seglog_{which} {needed}\n") == 1 for which in ("broker", "own_broker"))
    assert "Traceback" not in printed
    assert "raise " not in printed


def test_our_modules_are_not_compiled_anew_for_their_asserts(suite: pytest.Pytester) -> None:
    """As they would be in a wheel; an editable installation names no files of which pytest would know."""
    suite.makepyfile(
        before="""
        def pytest_addoption(parser, pluginmanager):
            names = ["seglog", "seglog_broker", "seglog_protocol", "seglog_spark", "pyspark_seglog"]
            pluginmanager.rewrite_hook.mark_rewrite(*names)
        """
    )
    suite.makepyfile(
        """
        import sys
        from _pytest.assertion.rewrite import AssertionRewritingHook
        def test_it(seglog_broker):
            loaders = {name: type(sys.modules[name].__loader__) for name in list(sys.modules) if name[:6] == "seglog"}
            assert len(loaders) > 100
            rewritten = {name for name, loader in loaders.items() if loader is AssertionRewritingHook}
            assert rewritten <= {"seglog", "seglog.testing", "seglog.testing.plugin"}
        """
    )
    suite.syspathinsert()
    outcome(suite.runpytest_subprocess("-p", "before"), passed=1)


def test_its_marker_ini_keys_and_fixtures_are_described(suite: pytest.Pytester) -> None:
    result = suite.runpytest("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.seglog(partitions=1, [*][*]config):*seglog(partitions=3*"])
    result = suite.runpytest("--help")
    result.stdout.fnmatch_lines(["*seglog_memory (bool):*", "*seglog_config (linelist):*"])
    result = suite.runpytest("--fixtures")
    described = {line.split()[0] for line in result.outlines if line.startswith("seglog_")}
    assert described == plugin.FIXTURES | {"seglog_broker_config"}


# --- Fixtures ---------------------------------------------------------------------------------------------------------


def test_every_test_has_a_topic_of_its_own_which_is_gone_after_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("word", ["a", "a", "b.b", "ä ö", "x" * 500])
        def test_it(seglog_broker, seglog_topic, word):
            print("TOPIC", seglog_topic)
            assert [topic.name for topic in seglog_broker.client.topics()] == [seglog_topic]
            assert seglog_broker.records(seglog_topic) == []
            seglog_broker.produce(seglog_topic, "one")
        def test_that_deletes_it(seglog_broker, seglog_topic):
            seglog_broker.client.delete_topic(seglog_topic)
        """
    )
    printed = outcome(suite.runpytest("-s"), passed=6)
    names = re.findall("TOPIC (.*)", printed)
    assert len(set(names)) == 5
    assert all(name.startswith("test_it-") for name in names)


@each_case("worker", [None, "gw11"])
@each_case("test", ["test_orders", "test_orders[1.5-a/b]", "тест", "..", "test_" + "x" * 500, "[]"])
def test_the_name_of_a_topic_is_one_that_kafka_allows(test: str, worker: str | None) -> None:
    name = plugin.topic_name(test, worker, 123_456)
    assert re.fullmatch("[A-Za-z0-9_-]{1,249}", name)
    assert name.endswith(f"-{worker}-123456" if worker else "-123456")
    assert name != plugin.topic_name(test, worker, 123_457)
    assert plugin.topic_name("test_orders[a.b]", None, 7) == "test_orders-a-b-7"


def test_mistakes_in_a_marker_are_one_sentence(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.seglog(retention_mss=1)
        def test_key(seglog_topic): pass
        @pytest.mark.seglog(partitions=0)
        def test_partitions(seglog_topic): pass
        @pytest.mark.seglog(3)
        def test_position(seglog_topic): pass
        @pytest.mark.seglog(partition=3)
        def test_partition(seglog_topic): pass
        """
    )
    printed = outcome(suite.runpytest(), errors=4)
    partitions = "a topic has partitions, as in seglog(partitions=3); partition is not one of its keys"
    assert f"\n@pytest.mark.seglog: {partitions}\n" in printed
    assert "\n@pytest.mark.seglog: retention.mss is not a topic configuration key: did you mean" in printed
    assert "\n@pytest.mark.seglog: a topic has from 1 to 10000 partitions, not 0\n" in printed
    assert "\n@pytest.mark.seglog has named arguments only, as in seglog(partitions=3), not 3\n" in printed
    assert "During handling" not in printed
    assert "raise " not in printed


def test_ini_file_and_fixture_configure_the_broker_and_the_marker_makes_the_topic(suite: pytest.Pytester) -> None:
    suite.makeini(INI + "seglog_config =\n    log.retention.ms = 1234\n    log.segment.bytes=2000000\n")
    suite.makeconftest(
        """
        import pytest
        @pytest.fixture(scope="session")
        def seglog_broker_config(seglog_broker_config):
            return {**seglog_broker_config, "num_partitions": 3}
        """
    )
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("name", ["seglog_broker", "seglog_own_broker"])
        def test_it(name, request):
            broker = request.getfixturevalue(name)
            assert broker.directory == "/data"
            assert broker.client.create_topic("made").partitions == 3
            config = broker.client.explain.config("made")
            assert (config["retention.ms"].value, config["segment.bytes"].value) == ("1234", "2000000")
        @pytest.mark.seglog(partitions=3, retention_ms=1000)
        class TestIt:
            @pytest.mark.seglog(partitions=2, cleanup_policy="compact")
            def test_it(self, seglog_client, seglog_topic):
                config = seglog_client.explain.config(seglog_topic)
                assert seglog_client.describe_topic(seglog_topic).partitions == 2
                assert [config[key].value for key in ("retention.ms", "cleanup.policy")] == ["1000", "compact"]
        """
    )
    outcome(suite.runpytest(), passed=3)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("seglog_config = nonsense", "seglog_config: 'nonsense' is not KEY=VALUE"),
        ("seglog_memory = perhaps", "seglog_memory: *'perhaps'*"),
    ],
)
def test_mistakes_in_the_ini_file_are_one_sentence(suite: pytest.Pytester, lines: str, sentence: str) -> None:
    suite.makeini(INI.replace("seglog_memory = true\n", lines))
    suite.makepyfile("def test_it(seglog_broker): pass")
    result = suite.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *tox.ini: {sentence}"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_key_that_does_not_exist_is_one_sentence(suite: pytest.Pytester) -> None:
    suite.makeini(INI + "seglog_config = log.retention.mss=1\n")
    suite.makepyfile("def test_it(seglog_broker): pass")
    printed = outcome(suite.runpytest(), errors=1)
    assert "\nseglog_broker cannot start: a broker has no key 'log.retention.mss'; did you mean " in printed
    assert "raise " not in printed


# --- Tests do not disturb each other ----------------------------------------------------------------------------------


def test_what_a_test_does_to_the_broker_ends_with_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("left", [
            "refuse()",
            "delay(3600)",
            "fail_next('append', 'UNKNOWN_TOPIC', times=100)",
            "full_disk()",
            "slow_disk(3600)",
            "cut_connections()",
            "refuse(cut=True)",
            "crash()",
            "stop()",
            "close()",
            "__exit__(None, None, None)",
            "full_disk(), broker.crash()",
            "log",
        ])
        def test_it(request, left):
            broker = request.getfixturevalue("seglog_broker")
            client = request.getfixturevalue("seglog_client")
            topic = request.getfixturevalue("seglog_topic")
            with client.producer(topic, ack="disk") as producer:
                producer.send(b"one").result()
            eval(f"broker.{left}")
        def test_it_in_the_ordinary_way(seglog_broker, seglog_client, seglog_topic):
            with seglog_client.producer(seglog_topic, ack="disk") as producer:
                producer.send(b"one").result()
            seglog_broker.refuse(cut=True)
        def test_it_again(seglog_broker, seglog_client): pass
        """
    )
    outcome(suite.runpytest(), passed=15)


def test_a_broker_that_does_not_start_again_is_one_sentence(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import socket
        taken = []
        def test_it(seglog_broker):
            seglog_broker.stop()
            host, port = seglog_broker.address.split(":")
            taken.append(socket.create_server((host, int(port))))
        def test_then(seglog_broker): pass
        def test_client(seglog_client): pass
        def test_topic(seglog_topic): pass
        def test_own(seglog_own_broker, seglog_client): pass
        def test_plain():
            taken[0].close()
        def test_after(seglog_client): pass
        """
    )
    printed = outcome(suite.runpytest(), passed=4, errors=3)
    sentence = "seglog_broker, which an earlier test has ended, does not start again: Cannot listen on "
    assert printed.count(f"\n{sentence}") == 3, "at once: no client waits for it"
    assert "raise " not in printed


def test_a_test_can_have_a_broker_of_its_own_whose_clock_can_be_moved(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(seglog_own_broker, seglog_broker, seglog_topic, seglog_client, number):
            assert seglog_own_broker.address != seglog_broker.address
            assert seglog_client.server == seglog_own_broker.address
            assert [topic.name for topic in seglog_own_broker.client.topics()] == [seglog_topic]
            assert seglog_broker.client.topics() == []
            seglog_own_broker.jump_clock(60)
            producer = seglog_client.producer(seglog_topic)
            seglog_own_broker.crash()
            producer.send(b"which gets there, or the client could not be closed")
            seglog_client.test_keeps = producer
        def test_that_of_all(seglog_broker): seglog_broker.jump_clock(60)
        """
    )
    printed = outcome(suite.runpytest(), passed=2, failed=1)
    assert "NotPossibleError: seglog_broker has one clock for all tests" in printed


# --- The report of a failed test --------------------------------------------------------------------------------------


def test_a_failed_test_shows_the_log_and_the_last_records_of_its_own_time(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        def test_before(seglog_broker, seglog_topic):
            seglog_broker.produce(seglog_topic, "secret")
            seglog_broker.produce("earlier", "secret")
            seglog_broker.produce("shared", "early")
        def test_it(seglog_broker, seglog_topic):
            seglog_broker.produce(seglog_topic, *map(str, range(9)), key="k")
            seglog_broker.produce("shared", "x" * 1000)
            assert seglog_topic == "orders"
        def test_plain():
            raise RuntimeError("plain")
        def test_passes(seglog_topic):
            pass
        """
    )
    printed = outcome(suite.runpytest(), passed=2, failed=2)
    titles = [line.strip(" -") for line in printed.splitlines() if line.startswith("----")]
    assert titles == ["seglog_broker: log", "seglog_broker: topics"], "of one test alone"
    log, topics = printed.split(" seglog_broker: log ")[1].split(" seglog_broker: topics ")
    assert re.findall("topic_created topic=([a-z_0-9-]+)", log) == ["test_it-2"]
    assert "broker_ready" not in log
    assert topics.split("____")[0].strip(" -\n").splitlines() == [
        "test_it-2, end offsets {0: 9}",
        *(f"  test_it-2-0 offset {number}: key b'k', value b'{number}'" for number in range(4, 9)),
        "shared, end offsets {0: 2}",
        "  shared-0 offset 0: value b'early'",
        f"  shared-0 offset 1: value b'{'x' * 78}… (1000 bytes)",
    ]


def test_what_it_shows_is_bounded_and_a_broker_that_is_down_is_said_to_be(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.seglog(partitions=40)
        def test_it(seglog_own_broker, seglog_topic):
            for number in range(60):
                seglog_own_broker.produce(f"t{number}" + "-" * 200, *["x" * 3000] * 20)
            for partition in range(40):
                seglog_own_broker.produce(seglog_topic, *["x" * 3000] * 20, partition=partition)
            raise RuntimeError
        def test_down(seglog_broker, seglog_topic):
            seglog_broker.crash()
            seglog_broker.produce(seglog_topic, "one")
        """
    )
    printed = outcome(suite.runpytest(), failed=2)
    assert "\nThe broker is not running: the test has stopped or crashed it.\n" in printed
    assert "broker_stopped" in printed
    log, topics = printed.split(" seglog_own_broker: log ")[1].split(" seglog_own_broker: topics ")
    assert re.search(r"\n\(1\d earlier lines are left out\)\n", log)  # one for each topic, and some more
    assert len(log.splitlines()) <= 3 + watched.LINES_MAX
    lines = topics.split("____")[0].strip(" -\n").splitlines()
    assert lines[-1] == f"and {61 - watched.TOPICS_MAX} topics more"
    assert len(lines) == watched.TOPICS_MAX * (1 + watched.RECORDS_MAX) + 1
    assert max(map(len, lines)) < 500


def test_records_that_cannot_be_read_are_said_to_be() -> None:
    class Broken(Broker):
        @property
        def client(self) -> Any:
            raise RuntimeError("it has ended")

    with Broken(memory=True) as broker:
        assert Watched("b", broker).sections(None)[1] == ("b: topics", "They could not be read: it has ended")


def test_an_error_of_the_broker_is_shown_with_its_trace() -> None:
    line = {"timestamp": "2026-01-02T03:04:05.678901Z", "level": "error", "event": "failed", "exception": "a\nb"}
    assert watched._log_text([line, {"event": "x" * 1000}]).splitlines() == [
        "03:04:05.678 error failed",
        "a",
        "b",
        "x" * watched.LINE_CHARACTERS_MAX + "…",
    ]


# --- Beside other plugins ---------------------------------------------------------------------------------------------


def test_each_worker_of_xdist_has_a_broker_and_reports_from_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import os, pytest
        @pytest.mark.parametrize("number", range(6))
        def test_it(seglog_broker, seglog_topic, number):
            seglog_broker.produce(seglog_topic, f"by {os.environ['PYTEST_XDIST_WORKER']}")
            assert os.environ["PYTEST_XDIST_WORKER"] in seglog_topic
            assert len(seglog_broker.client.topics()) == 1
            assert number < 5
        """
    )
    printed = outcome(suite.runpytest_subprocess("-n", "2"), passed=5, failed=1)
    assert re.search(r"test_it-5-(gw[01])-\d+-0 offset 0: value b'by \1'", printed)


def test_ctrl_c_ends_the_broker(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.makepyfile(
        """
        import gc, os, signal, threading
        def test_it(seglog_broker):
            gc.disable()  # in a __del__ of garbage, which trio's nurseries have, an interrupt is lost
            try:  # what it imports is imported then: an interrupt amid an import may leave Python's lock of it held
                seglog_broker.wait_for("never", timeout=0.1)
            except AssertionError:
                pass
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            seglog_broker.wait_for("never", timeout=3600)
        """
    )
    suite.makeini(INI.replace("seglog_memory = true", ""))
    monkeypatch.setenv("TMPDIR", str(suite.mkdir("temporary")))
    result = suite.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not list((suite.path / "temporary").glob("seglog*"))
    assert "Warning" not in result.stdout.str() + result.stderr.str()


ASYNC_TESTS: Final = """
import pytest
import seglog
from seglog.testing import AsyncBroker, Broker

{mark}
async def test_fixtures(seglog_broker, seglog_topic, seglog_client):
    seglog_broker.produce(seglog_topic, "one")
    with seglog_client.consumer(seglog_topic) as consumer:
        assert [record.value for record in consumer] == [b"one"]
    shared = AsyncBroker(seglog_broker)
    await shared.produce(seglog_topic, "two")
    assert len(await shared.wait_for(seglog_topic, 2)) == 2

{mark}
async def test_a_broker_of_its_own():
    async with Broker(memory=True) as broker:
        await broker.produce("orders", "one")
        assert len(await broker.records("orders")) == 1

{fixture}
async def broker():
    async with Broker(memory=True) as broker:
        yield broker

{mark}
async def test_a_fixture(broker):
    await broker.crash()
    await broker.start()

{mark}
async def test_left(seglog_broker):
    seglog_broker.delay(3600)
    seglog_broker.crash()
    raise RuntimeError

{mark}
async def test_fails(seglog_broker, seglog_topic):
    seglog_broker.produce(seglog_topic, "shown")
    raise RuntimeError
"""


LOOP: Final = "asyncio_default_fixture_loop_scope = function\nasyncio_mode = "


@pytest.mark.parametrize(
    ("package", "ini", "mark", "fixture", "runs"),
    [
        ("trio", "trio_mode = true", "", "@pytest.fixture", 1),
        ("asyncio", LOOP + "strict", "@pytest.mark.asyncio", "import pytest_asyncio\n@pytest_asyncio.fixture", 1),
        ("asyncio", LOOP + "auto", "", "@pytest.fixture", 1),
        ("anyio", "", "@pytest.mark.anyio", "@pytest.fixture", 2),
    ],
    ids=["trio", "asyncio-strict", "asyncio-auto", "anyio"],
)
def test_it_works_beside_the_plugins_for_async_tests(
    suite: pytest.Pytester, package: str, ini: str, mark: str, fixture: str, runs: int
) -> None:
    if importlib.util.find_spec("anyio" if package == "anyio" else f"pytest_{package}") is None:
        pytest.skip(f"needs {package}")
    others = {"trio", "asyncio", "anyio"} - {package}
    suite.makeini(INI.replace("-p no:asyncio -p no:anyio", " ".join(f"-p no:{other}" for other in others)) + ini)
    suite.makepyfile(ASYNC_TESTS.format(mark=mark, fixture=fixture))
    printed = outcome(suite.runpytest_subprocess(), passed=3 * runs, failed=2 * runs)
    assert printed.count(": value b'shown'") == runs


# --- Accounts and TLS -------------------------------------------------------------------------------------------------

SECRET: Final = "of alice, and nobody else's"
ACCOUNTS: Final = """
import pathlib, pytest
@pytest.fixture(scope="session")
def seglog_broker_config(seglog_broker_config):
    users = {"alice": pathlib.Path("password").read_text()}
    return {**seglog_broker_config, "users": users, "tls": True, MORE}
"""


def test_the_fixtures_have_accounts_and_tls(suite: pytest.Pytester) -> None:
    (suite.path / "password").write_text(SECRET)
    suite.makeconftest(ACCOUNTS.replace("MORE", ""))
    suite.makepyfile(
        """
        import seglog
        def use(broker, topic, client):
            assert client.principal == "User:seglog-testing"
            assert client.tls_version
            with seglog.connect(**broker.client_config("alice")) as alice:
                alice.producer(topic).send("one").result()
            assert len(broker.records(topic)) == 1
            broker.crash()
        def test_it(seglog_broker, seglog_topic, seglog_client):
            use(seglog_broker, seglog_topic, seglog_client)
        def test_own(seglog_own_broker, seglog_topic, seglog_client):
            use(seglog_own_broker, seglog_topic, seglog_client)
        """,
    )
    outcome(suite.runpytest_subprocess(), passed=2)


@pytest.mark.parametrize(
    ("wrong", "errors"),
    [
        ("", 0),
        ("'log_retention': 1", 3),
        ("'users': [users]", 3),
        ("'users': {**users, 'bob': lambda: 1 / 0}", 3),
        ("'memory': False, 'directory': 'password'", 1),
    ],
)
def test_no_report_shows_a_password(suite: pytest.Pytester, wrong: str, errors: int) -> None:
    """Neither of a test that fails, nor of a broker that does not start, with the variables of all calls."""
    (suite.path / "password").write_text(SECRET)
    suite.makeconftest(ACCOUNTS.replace("MORE", wrong))
    suite.makepyfile(
        """
        import seglog
        def test_it(seglog_broker, seglog_topic):
            seglog_broker.create_user("bob", "b")
            with seglog.connect(**seglog_broker.client_config("alice")) as client:
                client.producer(seglog_topic).send("one").result()
                config, kafka = seglog_broker.client_config("alice"), seglog_broker.kafka_config("alice")
                assert (config, kafka, client) == 0
        def test_own(seglog_own_broker, seglog_client):
            seglog.connect(**seglog_own_broker.client_config("alice") | {"user": "nobody"})
        def test_unknown(seglog_own_broker):
            seglog_own_broker.client_config("nobody")
        """
    )
    result = suite.runpytest_subprocess("--showlocals", "--tb=long", "-vv")
    printed = outcome(result, errors=errors, failed=3 - errors)
    assert SECRET not in printed
    assert ("cannot start" in printed or "ZeroDivisionError" in printed) == bool(errors)
    assert ("client_authenticated" in printed) == (errors < 3)
