"""Scans by Spark through this checkout, through an older revision of it, and of Parquet, in rounds that take turns.

``python -m benchmarks.spark_builds REVISION`` takes about four minutes. Each build has a daemon, the same records and a
session of its own, which all stay.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import seglog
from benchmarks.batches import RECORD_BYTES
from benchmarks.harness import REPOSITORY, Bench, BenchmarkError, Goal, Row, take_turns
from benchmarks.processes import Build, Daemon, environment, family_cpu_seconds, worker
from benchmarks.spark import BATCH_BYTES, CORES, SCAN, tables
from benchmarks.table import line

_TOPIC: Final = "bench-spark"
_SCANS: Final = {"broker": "value binary", "files": "value binary", "broker, all columns": ""}
"""Schemas, by where the records come from."""
_GOALS: Final = {"broker": 0.60, "files": 0.63, "broker, all columns": 0.45}
_FASTER: Final = Goal("≥", 1.5, "ratio")


def _serve() -> None:
    """A session of the build that is found first, which scans what lines of JSON on stdin name."""
    from seglog_spark import session  # noqa: PLC0415 - needs pyspark

    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}
    spark = session("seglog-bench", master=f"local[{CORES}]", conf=conf, log_level="OFF")
    frames: dict[str, Any] = {}
    for asked in sys.stdin:
        kind, schema, options, to = json.loads(asked)
        if asked not in frames:
            reader = spark.read.format(kind).options(**options)
            frames[asked] = (reader.schema(schema) if schema else reader).load()
        if to:
            frames[asked].write.parquet(to)
        print(frames[asked].selectExpr(SCAN).collect()[0][0], flush=True)


class _Side:
    """One build: a daemon with the records, and a session that reads them."""

    def __init__(self, bench: Bench, opened: ExitStack, packages: Path | None, count: int) -> None:
        self._count = count
        directory = opened.enter_context(bench.fresh_directory())
        self._daemon = Daemon(bench, directory, build=Build(sys.executable, environment(packages)))
        self._daemon.start()
        opened.callback(self._daemon.stop)
        with seglog.connect(self._daemon.address) as client:
            client.create_topic(_TOPIC, 4, {"retention.ms": -1})  # the records are old
            seglog.write_arrow(client, _TOPIC, tables(count), ack="os", batch_bytes=BATCH_BYTES)
        self._session = opened.enter_context(
            worker("benchmarks.spark_builds", "--serve", packages=packages, stdin=subprocess.PIPE)
        )

    def scan(self, where: str, to: str = "") -> tuple[float, float]:
        """As ``ask``, through this build."""
        place = {"localLogDir": str(self._daemon.directory)} if where == "files" else {"servers": self._daemon.address}
        return self.ask("seglog", _SCANS[where], place | {"subscribe": _TOPIC}, to)

    def ask(self, kind: str, schema: str, options: dict[str, str], to: str = "") -> tuple[float, float]:
        """Records a second of a scan, and the processor seconds for a million; with ``to`` Parquet is written first."""
        assert self._session.stdin is not None
        assert self._session.stdout is not None
        cpu, began = family_cpu_seconds(), time.perf_counter()
        print(json.dumps([kind, schema, options, to]), file=self._session.stdin, flush=True)
        found = self._session.stdout.readline()
        if found.strip() != str(self._count * RECORD_BYTES):
            raise BenchmarkError(f"the session answered {found!r}")
        return self._count / (time.perf_counter() - began), (family_cpu_seconds() - cpu) * 1e6 / self._count


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_builds", description=__doc__)
    parser.add_argument("revision", nargs="?", help="of git, to stand beside this checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve()
        return
    directory = REPOSITORY / "build" / "benchmarks"
    directory.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.rounds, quick=False, directory=directory)
    with ExitStack() as opened:
        scratch = opened.enter_context(bench.fresh_directory())
        for folder in ("broker", "protocol", "clients"):
            archive = ["git", "archive", f"{options.revision}:{folder}"]
            packed = subprocess.run(archive, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(scratch)], input=packed, check=True)
        before = _Side(bench, opened, scratch, options.records)
        now = _Side(bench, opened, None, options.records)
        parquet = str(scratch / "parquet")
        now.scan("broker, all columns", to=parquet)
        scans = [partial(side.scan, where) for where in _SCANS for side in (now, before)]
        scans.append(partial(now.ask, "parquet", "", {"path": parquet}))
        take_turns(2, *scans)  # workers and the JVM's compiler
        *found, beside = take_turns(options.rounds, *scans)
    for number, where in enumerate(_SCANS):
        ours, older = found[2 * number : 2 * number + 2]
        for part, unit in enumerate(("rows/s", "CPU s/M")):
            values, old, columns = ([run[part] for run in runs] for runs in (ours, older, beside))
            aim = Goal("≥", _GOALS[where], "ratio")
            print(line(Row(where, unit, values, columns, "parquet", None if part else aim)))
            print(line(Row("", unit, values, old, options.revision[:12], None if part else _FASTER)))
    print("\n".join(f"PROBLEM {problem}" for problem in bench.problems))


if __name__ == "__main__":
    main()
