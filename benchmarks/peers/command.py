"""The part of the command line that is about peers: options, the table on stdout, JSON in a file."""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Bench, BenchmarkError
from benchmarks.peers import run as running
from benchmarks.peers.field import WITHOUT, Asked, scripts_of
from benchmarks.peers.results import LEGEND, PeerRow, Results, as_json, heading, line, versions_line

ROUNDS_WITH_PEERS: Final = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What goes with ``--peers``."""
    parser.add_argument(
        "--peers",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="instead of the benchmarks: seglog beside the brokers that scripts start. A directory has kafka/kafka and "
        "redis/redis; a script, or a folder with a script of its name, is a broker that speaks Kafka's protocol",
    )
    parser.add_argument(
        "--compiled",
        type=Path,
        metavar="PATH",
        help="with --peers: a compiled seglog beside the sources: a wheel, a folder of packages, a Python that has it",
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help=f"with --peers: leave out {', '.join(WITHOUT)}"
    )


def check(options: argparse.Namespace) -> str | None:
    """What is wrong with the options for peers; None if nothing is."""
    if options.peers is None:
        for name in ("compiled", "without"):
            if getattr(options, name):
                return f"--{name} goes with --peers"
    for unknown in sorted(set(options.without) - set(WITHOUT)):
        return f"--without {unknown}: choose from {', '.join(WITHOUT)}"
    if {"native", "kafkas-wire"} <= set(options.without) or ("pure" in options.without and options.compiled is None):
        return "--without leaves nothing of seglog"
    return None


def run(bench: Bench, facts: dict[str, Any], options: argparse.Namespace) -> int:
    """Measure; the exit code. JSON is written however it ends."""
    results = Results(facts)
    asked = Asked(scripts_of(options.peers), options.compiled, options.without)
    began = time.monotonic()
    code = 0
    try:
        running.measure(bench, asked, options.only, results, lambda what: _show(results, what))
    except KeyboardInterrupt:
        code = 130
    except BenchmarkError as error:
        bench.report(str(error))
    results.problems = bench.problems
    facts["seconds"] = round(time.monotonic() - began)
    print(f"\n{facts['seconds']} s. {LEGEND}")
    _write(results, options.json or options.directory / "peers.json")
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
