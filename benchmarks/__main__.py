"""The command line: which benchmarks, how long, and where; a table on stdout and, if asked for, JSON in a file.

Exit codes: 0 everything was measured, 1 a benchmark failed or the daemon did something wrong, 2 usage, 130 interrupted.
Slowness is no failure.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import (
    append,
    archiving,
    backup,
    clients,
    compaction,
    console,
    fetch,
    group_commits,
    group_loading,
    group_rebalance,
    latency,
    quotas,
    scrape,
    secure,
    seek,
    spark,
    spark_writing,
    starting,
    transactions,
)
from benchmarks.harness import REPOSITORY, Bench, Benchmark, BenchmarkError, Row, deadline
from benchmarks.peers import command
from benchmarks.peers.cases import GROUPS as PEER_GROUPS
from benchmarks.table import as_json, heading, line, machine, machine_line
from seglog_protocol.errors import SeglogError


def _stalls(bench: Bench) -> list[Row]:
    """One for each benchmark that ran a daemon; every daemon is asked before it is stopped."""
    return [Row(f"longest turn, {group}", "ms", [turn * 1000]) for group, turn in bench.stalls.items()]


BENCHMARKS: Final = (
    append.BENCHMARK,
    fetch.BENCHMARK,
    latency.BENCHMARK,
    seek.BENCHMARK,
    starting.BENCHMARK,
    clients.BENCHMARK,
    console.BENCHMARK,
    secure.BENCHMARK,
    scrape.BENCHMARK,
    group_commits.BENCHMARK,
    group_rebalance.BENCHMARK,
    group_loading.BENCHMARK,
    transactions.BENCHMARK,
    quotas.BENCHMARK,
    backup.BENCHMARK,
    spark.BENCHMARK,
    spark_writing.BENCHMARK,
    archiving.BENCHMARK,
    compaction.BENCHMARK,
    Benchmark("stalls", "the daemon's longest turns in all of the above, in processor time", "", _stalls),
)
ROUNDS: Final = 5
ROUNDS_QUICK: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    options = _parse(arguments)
    directory: Path = options.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    rounds = options.rounds or (
        ROUNDS_QUICK if options.quick else ROUNDS if options.peers is None else command.ROUNDS_WITH_PEERS
    )
    bench = Bench(
        rounds, options.quick, directory, options.peers_python, options.beside_kafka, options.backup_gigabytes
    )
    facts = machine(bench)
    print(machine_line(facts))
    if options.peers is not None:
        return command.run(bench, facts, options)
    measured: list[tuple[Benchmark, list[Row]]] = []
    began = time.monotonic()
    failed = False
    code = 0
    try:
        for benchmark in BENCHMARKS:
            if benchmark.name in options.only:
                failed |= not _measure(bench, benchmark, measured)
    except KeyboardInterrupt:
        code = 130
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(facts, measured, bench), indent=1, ensure_ascii=False) + "\n")
    print(
        f"\n{time.monotonic() - began:.0f} s. median: of the rounds; ±: (largest - smallest) / median; ratio: median"
        "\nof the rounds' own ratios; goal: of the value, or with x of the ratio, ! not reached. See NOTES.md."
    )
    for problem in bench.problems:
        print(f"PROBLEM {problem}")
    return code or int(failed or bool(bench.problems))


def _measure(bench: Bench, benchmark: Benchmark, measured: list[tuple[Benchmark, list[Row]]]) -> bool:
    """Print a group's rows as they come; False when it could not be run to its end."""
    rows: list[Row] = []
    began = time.monotonic()
    measured.append((benchmark, rows))
    bench.group = benchmark.name
    print(heading(benchmark), flush=True)
    try:
        with deadline(bench.pick(benchmark.seconds, benchmark.seconds // 5), benchmark.name):
            for row in benchmark.run(bench):
                rows.append(row)
                print(line(row), flush=True)
    except (BenchmarkError, SeglogError, OSError) as error:
        bench.report(f"could not be measured: {error}")
        print(f"    ({error})")
        return False
    finally:
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    return True


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure seglog beside bare loops, in rounds that take turns.",
        epilog=f"Benchmarks: {', '.join(names)}; with --peers: {', '.join(PEER_GROUPS)}. "
        "benchmarks/NOTES.md says what each compares.",
    )
    parser.add_argument("--quick", action="store_true", help="under a minute: shows that it runs, not how fast")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of them")
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"instead of {ROUNDS}, {command.ROUNDS_WITH_PEERS} with peers, or {ROUNDS_QUICK} if quick",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round of every row")
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        default=REPOSITORY / "build" / "benchmarks",
        help="on the disk to measure; about 20 GB are used for a while (build/benchmarks)",
    )
    parser.add_argument("--peers-python", metavar="PYTHON", help="an interpreter that can import confluent_kafka")
    parser.add_argument(
        "--beside-kafka",
        type=Path,
        metavar="DIRECTORY",
        help="groups beside a real Kafka, which DIRECTORY/kafka/kafka runs",
    )
    parser.add_argument(
        "--backup-gigabytes", type=float, metavar="GB", default=10, help="of the backup that is restored (10)"
    )
    command.add_arguments(parser)
    options = parser.parse_args(arguments)
    known = names if options.peers is None else PEER_GROUPS
    options.only = options.only or known
    for unknown in set(options.only) - set(known):
        parser.error(f"--only {unknown}: choose from {', '.join(known)}")
    if options.beside_kafka is not None and options.peers is not None:
        parser.error("--beside-kafka goes without --peers")
    if wrong := command.check(options):
        parser.error(wrong)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds is 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
