"""A Spark session that is set up for seglog: ``seglog_spark.session()``."""

import os
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from seglog_spark.java import find_java, java_from_pip, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADDED_BY_STREAMS: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What a starting stream sets in the environment of its source; here with Spark's defaults, which it replaces."""

_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def settings(master: str | None, cores: int) -> dict[str, str]:
    """Default Spark settings; ``cores`` are this machine's, for a local master."""
    chosen = {
        # Without these sockets every task waits 40 ms for an acknowledgement that TCP delays.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Else a micro-batch that is run again may have other tasks, and the sink keeps what is written by task.
        "spark.sql.adaptive.streaming.stateless.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": _ROCKS,
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(master):
        chosen["spark.sql.shuffle.partitions"] = str(max(1, cores))
        # Not on a cluster, whose daemons start before what a job brings along can be imported.
        chosen["spark.python.daemon.module"] = "seglog_spark.python_daemon"
    return chosen


def environment(environ: Mapping[str, str], master: str | None) -> dict[str, str]:
    """Environment variables to add before Spark starts.

    Without them workers would use ``python3`` from PATH, another Python when a virtual environment is not activated.
    And Arrow would ask of every value whether it is null, for which Spark has just asked: a tenth of the JVM's time.
    """
    wanted = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "ARROW_ENABLE_NULL_CHECK_FOR_GET": "false",
    }
    if is_local(master):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {name: value for name, value in wanted.items() if name not in environ}


def is_local(master: str | None) -> bool:
    """Whether everything runs in one process on this machine."""
    return master is not None and master.partition("[")[0] == "local"


def session(
    app: str = "seglog", *, master: str | None = None, conf: Mapping[str, str] | None = None, log_level: str = "ERROR"
) -> "SparkSession":
    """The session of this process, created if there is none.

    ``master`` defaults to spark-submit's, else ``local[*]``. ``conf`` overrides the settings made here. Raises
    JavaMissingError.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the rest of this package is imported without it

    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted:
        master = "local[*]"
    if not is_submitted:
        home = find_java(os.environ, version_of, java_from_pip)
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
    os.environ.update(environment(os.environ, master))
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for key, value in (settings(master, os.cpu_count() or 1) | dict(conf or {})).items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel(log_level)
    _register(made)
    return made


def _register(spark: "SparkSession") -> None:
    """Tell the session of the source, which it would find by itself, with an environment that is complete.

    All streams of a session share their source's environment, a plain map that each of them adds to when it starts. Two
    at once could leave it with a count that is wrong for good: "Task serialization failed: Illegal size 5 of
    collection, expected 6" for every later task (Spark 4.3). What is there already is replaced and not added.
    """
    from seglog_spark.source import SeglogDataSource  # noqa: PLC0415 - see above

    environment: dict[str, str] = spark.sparkContext.environment
    missing = _ADDED_BY_STREAMS.keys() - environment.keys()
    environment.update((name, _ADDED_BY_STREAMS[name]) for name in missing)
    try:
        spark.dataSource.register(SeglogDataSource)
    finally:
        for name in missing:
            del environment[name]
