"""Fixtures for pytest: ``seglog_broker``, ``seglog_topic``, ``seglog_client`` and ``seglog_own_broker``.

pytest imports this module in every run on a machine that has seglog. So it imports nothing of seglog, nor of what the
broker needs, before one of the fixtures is used. docs/TESTING.md has the recipes.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from seglog import Client
    from seglog.testing import Broker
    from seglog.testing.watched import Watched


OF_SESSION: Final = "seglog_broker"
OF_TEST: Final = "seglog_own_broker"
FIXTURES: Final = frozenset({OF_SESSION, OF_TEST, "seglog_topic", "seglog_client"})
OUR_PACKAGES: Final = frozenset({"seglog", "seglog_broker", "seglog_protocol", "seglog_spark", "pyspark_seglog"})
STEM_MAX: Final = 200
"""Characters of the name of a topic that are those of its test: Kafka's names have 249 at most."""

_WATCHED: Final = pytest.StashKey["dict[str, Watched]"]()
_TOPIC: Final = pytest.StashKey[str]()
_NUMBERS: Final = pytest.StashKey["count[int]"]()


# --- Marker and ini keys ----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """See pytest."""
    # pytest compiles all modules of a distribution with a plugin anew, so that their asserts explain themselves. Ours
    # need it not, and took three times as long to import, in the first run or, where no bytecode is written, in all.
    marked = getattr(getattr(pluginmanager, "rewrite_hook", None), "_must_rewrite", None)
    if isinstance(marked, set):
        marked -= OUR_PACKAGES
    parser.addini("seglog_memory", "seglog: whether the broker of the fixtures keeps its data in memory", "bool", False)
    parser.addini("seglog_config", "seglog: the broker's configuration, KEY=VALUE in each line", "linelist", [])


def pytest_configure(config: pytest.Config) -> None:
    """See pytest. Raises UsageError for ini values that cannot be read."""
    config.addinivalue_line(
        "markers",
        "seglog(partitions=1, **config): the topic that the fixture seglog_topic makes, as in "
        "seglog(partitions=3, retention_ms=1000)",
    )
    config.stash[_NUMBERS] = count(1)
    _ini_arguments(config)


def _ini_arguments(config: pytest.Config) -> dict[str, Any]:
    """Arguments for ``Broker``. Raises UsageError."""
    arguments: dict[str, Any] = {"memory": _ini_value(config, "seglog_memory")}
    for line in _ini_value(config, "seglog_config"):
        key, equals, value = line.partition("=")
        if not (equals and key.strip()):
            raise pytest.UsageError(f"{_ini_place(config)}: seglog_config: {line!r} is not KEY=VALUE")
        arguments.setdefault("config", {})[key.strip()] = value.strip()
    return arguments


def _ini_value(config: pytest.Config, name: str) -> Any:
    try:
        return config.getini(name)
    except (TypeError, ValueError, pytest.UsageError) as error:  # which of them depends on pytest's version
        raise pytest.UsageError(f"{_ini_place(config)}: {name}: {error}") from error


def _ini_place(config: pytest.Config) -> str:
    return str(config.inipath or "the command line")


# --- Fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def seglog_broker_config(pytestconfig: pytest.Config) -> dict[str, Any]:
    """The arguments of ``seglog.testing.Broker`` for the brokers of all fixtures.

    By default those of the ini keys seglog_memory and seglog_config. A conftest.py may define another fixture of this
    name, of session scope: ``return {"memory": True, "log_retention_ms": 1000}``.
    """
    return _ini_arguments(pytestconfig)


@pytest.fixture(scope="session")
def seglog_broker(seglog_broker_config: Mapping[str, Any], pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """A real broker in this process, for all tests: a ``seglog.testing.Broker``.

    After each test that uses it, its faults are healed, and it is started again if the test has ended it in any way.
    Topics stay, but for those of seglog_topic. Its clock cannot be moved: see seglog_own_broker.
    """
    _require(OF_SESSION)
    seglog_broker_config = _hidden(seglog_broker_config)
    from seglog.testing.watched import SessionBroker  # noqa: PLC0415

    with _running(OF_SESSION, SessionBroker, seglog_broker_config) as watched:
        brokers = pytestconfig.stash.setdefault(_WATCHED, {})
        brokers[OF_SESSION] = watched
        try:
            yield watched.broker
        finally:
            del brokers[OF_SESSION]


@pytest.fixture
def seglog_own_broker(request: pytest.FixtureRequest, seglog_broker_config: Mapping[str, Any]) -> "Iterator[Broker]":
    """A real broker for this test alone, to be crashed, emptied, or moved in time.

    seglog_topic and seglog_client are then those of this broker.
    """
    _require(OF_TEST)
    seglog_broker_config = _hidden(seglog_broker_config)
    from seglog.testing import Broker  # noqa: PLC0415

    places = ("directory", "listen", "kafka")  # those of the session's broker
    config = {name: value for name, value in seglog_broker_config.items() if name not in places}
    with _running(OF_TEST, Broker, config) as watched:
        request.node.stash.setdefault(_WATCHED, {})[OF_TEST] = watched
        yield watched.broker


@pytest.fixture
def seglog_topic(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[str]:
    """The name of a new topic for this test, which is deleted after it.

    It has one partition; ``@pytest.mark.seglog(partitions=3, retention_ms=1000)`` says otherwise.
    """
    broker = _broker_of(request)
    name = request.node.stash[_TOPIC] = _make_topic(request, broker, pytestconfig.stash[_NUMBERS])
    yield name
    if broker.is_running:
        from seglog_protocol.errors import UnknownTopicError  # noqa: PLC0415

        with suppress(UnknownTopicError):  # the test has deleted it
            broker.client.delete_topic(name)


@pytest.fixture
def seglog_client(request: pytest.FixtureRequest) -> "Iterator[Client]":
    """A ``seglog.Client`` that is connected to the broker of this test, and closed after it.

    Where the broker has accounts, it is one that administers.
    """
    broker = _broker_of(request)
    import seglog  # noqa: PLC0415

    with seglog.connect(**broker.client_config()) as client:
        yield client


def _hidden(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """With passwords that no report of a failure shows, which has the arguments of calls."""
    from seglog.testing.accounts import hide  # noqa: PLC0415

    return {**arguments, "users": hide(arguments["users"])} if "users" in arguments else {**arguments}


@contextmanager
def _running(fixture: str, make: "Callable[..., Broker]", arguments: Mapping[str, Any]) -> "Iterator[Watched]":
    from seglog.testing import Broker  # noqa: PLC0415
    from seglog.testing.watched import Watched  # noqa: PLC0415
    from seglog_protocol.errors import SeglogError  # noqa: PLC0415

    try:
        broker = make(**arguments)
        broker.start()
    except (TypeError, ValueError, SeglogError) as error:
        _fail(f"{fixture} cannot start: {error}")
    try:
        yield Watched(fixture, broker)
    finally:
        Broker.close(broker)  # for good, also that of the session


def _broker_of(request: pytest.FixtureRequest) -> "Broker":
    broker: Broker = request.getfixturevalue(OF_TEST if OF_TEST in request.fixturenames else OF_SESSION)
    return broker


def _make_topic(request: pytest.FixtureRequest, broker: "Broker", numbers: "count[int]") -> str:
    from seglog.testing import BrokerStoppedError  # noqa: PLC0415
    from seglog_protocol.errors import RequestError, TopicExistsError  # noqa: PLC0415

    config: dict[str, Any] = {"partitions": 1}
    for marker in reversed(list(request.node.iter_markers("seglog"))):  # the closest one last
        if marker.args:
            _fail(f"@pytest.mark.seglog has named arguments only, as in seglog(partitions=3), not {marker.args[0]!r}")
        config |= marker.kwargs
    if "partition" in config:
        _fail(
            "@pytest.mark.seglog: a topic has partitions, as in seglog(partitions=3); partition is not one of its keys"
        )
    while True:
        name = topic_name(request.node.name, os.environ.get("PYTEST_XDIST_WORKER"), next(numbers))
        try:
            broker.create_topic(name, **config)
        except TopicExistsError:  # in a directory that outlives the run
            continue
        except BrokerStoppedError as error:
            _fail(f"seglog_topic: {error}")
        except (TypeError, RequestError) as error:
            _fail(f"@pytest.mark.seglog: {error}")
        return name


def topic_name(test: str, worker: str | None, number: int) -> str:
    """A name that Kafka allows for the ``number``-th topic of a process, which is one of xdist's or alone."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", test)[:STEM_MAX].strip("-") or "test"
    return "-".join([stem, *([worker] if worker else []), str(number)])


def _require(fixture: str) -> None:
    from seglog_protocol.extras import missing  # noqa: PLC0415

    error = missing(f"the fixture {fixture}", "testing")
    if error is not None:
        _fail(str(error))


def _fail(sentence: str) -> NoReturn:
    raise pytest.fail.Exception(sentence, pytrace=False) from None


# --- Around each test -------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """See pytest. The broker of the session is as if no test had used it."""
    shared = item.config.stash.get(_WATCHED, {}).get(OF_SESSION)
    if shared is not None:
        try:
            fixtures = _fixtures_of(item) & FIXTURES  # which have not asked for it yet
            shared.begin(is_used=OF_SESSION in fixtures or (OF_TEST not in fixtures and bool(fixtures)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it has one cause
            _fail(f"{OF_SESSION}, which an earlier test has ended, does not start again: {error}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """See pytest. Brokers run and have no faults while fixtures of the test end."""
    for watched in _used_by(item):
        with suppress(Exception):  # told at the next setup; an error here would keep pytest from ending fixtures
            watched.mend()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> "Generator[None, Any, None]":
    """See pytest. The report of a failed test has the log of its brokers, and what their topics hold."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for watched in _used_by(item):
            report.sections += watched.sections(item.stash.get(_TOPIC, None))


def _used_by(item: pytest.Item) -> "list[Watched]":
    own = item.stash.get(_WATCHED, {})
    shared = item.config.stash.get(_WATCHED, {}) if OF_SESSION in _fixtures_of(item) else {}
    return [*shared.values(), *own.values()]


def _fixtures_of(item: pytest.Item) -> frozenset[str]:
    # the request also knows those that were got by getfixturevalue()
    return frozenset(getattr(getattr(item, "_request", item), "fixturenames", ()))
