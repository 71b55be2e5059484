"""The part of the command line that is about peers: options, the table on stdout, JSON and the picture in files."""

import argparse
import importlib.util
import json
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Bench
from benchmarks.peers import run as running
from benchmarks.peers.results import LEGEND, PeerRow, Results, as_json, heading, line, versions_line

ROUNDS_WITH_PEERS: Final = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What goes with ``--peers``."""
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="DIRECTORY",
        help="instead of the benchmarks: seglog beside Apache Kafka, NATS JetStream and Redis Streams, which the "
        "scripts kafka/kafka, nats/nats and redis/redis of this directory start; about ten minutes",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="with --peers: .png or .svg (peers.png in DIR)")


def run(bench: Bench, facts: dict[str, Any], options: argparse.Namespace) -> int:
    """Measure; the exit code. JSON and picture are written however it ends."""
    results = Results(facts)
    began = time.monotonic()
    code = 0
    try:
        running.measure(bench, options.peers, options.only, results, lambda what: _show(results, what))
    except KeyboardInterrupt:
        code = 130
    results.problems = bench.problems
    print(f"\n{time.monotonic() - began:.0f} s. {LEGEND}")
    _write(results, options.json or options.directory / "peers.json")
    _draw(results, options.picture or options.directory / "peers.png")
    for problem in bench.problems:
        print(f"PROBLEM {problem}")
    return code or int(bool(bench.problems))


def _show(results: Results, what: str | PeerRow) -> None:
    if isinstance(what, PeerRow):
        print(line(what), flush=True)
    elif what:
        print(f"{what}", flush=True)
    else:
        print(f"{versions_line(results)}\n\n{heading()}", flush=True)


def _write(results: Results, path: Path) -> None:
    path.write_text(json.dumps(as_json(results), indent=1, ensure_ascii=False) + "\n")
    print(f"every round: {path}")


def _draw(results: Results, path: Path) -> None:
    if not results.beside_kafka():
        print("no picture: nothing was measured beside Kafka")
        return
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: the package matplotlib is missing: pip install 'seglog[plot]'")
        return
    from benchmarks.peers.picture import draw  # noqa: PLC0415 - matplotlib is needed here only

    draw(results, path)
    print(f"picture: {path}")
