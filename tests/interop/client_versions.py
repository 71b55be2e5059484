"""Versions of Kafka's clients, each by four steps against a daemon and an Apache Kafka, and the page about them.

    python -m tests.interop.client_versions [LIBRARY [VERSION]]

runs them, and writes their rows of ``docs/CLIENT-VERSIONS.md`` anew. The steps are those of small programs, as
``client_programs.steps_told`` has them. A proxy before the broker notes which version of which api is asked for.
"""

import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.foreign_programs import INSTALLED, AbsentError, installed, run, tools
from tests.interop.client_programs import CLIENTS, steps_told
from tests.interop.kafka_login_captures import Tap, api_of, frames
from tests.interop.peer import JUDGE, Kafka, kafka_script
from tests.processes import daemon, free_port
from tests.support import REPOSITORY

SOURCES: Final = CLIENTS / "versions"
PAGE: Final = REPOSITORY / "docs" / "CLIENT-VERSIONS.md"
STEPS: Final = ("admin", "produce", "group", "transaction")
SHOWN: Final = {
    18: "ApiVersions",
    3: "Metadata",
    0: "Produce",
    1: "Fetch",
    11: "JoinGroup",
    68: "ConsumerGroupHeartbeat",
    26: "EndTxn",
}
"""The apis of which the page names the highest version that was asked for, by key."""


@dataclass(frozen=True)
class Row:
    """One version of one client."""

    library: str
    version: str

    @property
    def name(self) -> str:
        """Library and version."""
        return f"{self.library} {self.version}"


ROWS: Final = tuple(
    Row(library, version)
    for library, versions in {
        "Java": "2.1.1 2.8.2 3.0.2 3.1.2 3.2.3 3.3.2 3.4.1 3.5.2 3.6.2 3.7.2 3.8.1 3.9.2 4.0.1 4.1.1 4.2.0 4.3.1 4.4.0",
        "confluent-kafka": "2.0.2 2.3.0 2.8.2 2.16.1",
        "kafka-python": "2.0.2 2.1.6 2.3.3 3.0.12",
        "aiokafka": "0.9.0 0.10.0 0.12.0 0.14.0",
        "Sarama": "1.38.1 1.42.1 1.46.3 1.61.1",
        "franz-go": "1.14.0 1.16.1 1.19.5 1.22.3",
        "kafka-go": "0.4.42 0.4.47 0.4.49 0.4.51",
        "kafkajs": "1.12.0 1.16.0 2.0.2 2.2.4",
        "@platformatic/kafka": "1.11.0 1.16.0 1.22.0 2.12.1",
        "rskafka": "0.3.0 0.4.0 0.5.0 0.6.0",
    }.items()
    for version in versions.split()
)
"""The newest, the oldest that installs, and two between; of Java's each minor version since 3.0, and two before it."""


@dataclass
class Outcome:
    """The steps of a row against one broker: what was wrong by step, and the highest version asked for by api key."""

    steps: dict[str, str]
    asked: dict[int, int]

    @property
    def served(self) -> set[str]:
        """The steps that ended well."""
        return {step for step, wrong in self.steps.items() if not wrong}


# --- How each is installed --------------------------------------------------------------------------------------------


def command_of(row: Row) -> tuple[Sequence[str], Path]:
    """The command without its arguments, and the folder in which it runs. Raises AbsentError."""
    name = f"versions-{row.name}".replace("/", "-").replace(" ", "-").lower()
    source, make, command = _KINDS[row.library]
    folder = installed(name, [source], functools.partial(make, row))
    return command(folder), folder


def make_java(row: Row, folder: Path, program: str = "Steps") -> None:
    """Kafka's client for Java of a version, and a program of `CLIENTS` compiled with it."""
    tools("mvn", "java")
    wanted = (("org.apache.kafka", "kafka-clients", row.version), ("org.slf4j", "slf4j-nop", "1.7.36"))
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in wanted
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>a</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    run("mvn", "-q", "-B", "-f", folder / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={folder}")
    run("javac", "-cp", f"{folder}/*", "-d", folder, CLIENTS / f"{program}.java")


def _make_python(row: Row, folder: Path) -> None:
    run(sys.executable, "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet")
    run(*pip, "--only-binary=confluent-kafka,aiokafka", f"{row.library}=={row.version}")


def _make_go(row: Row, folder: Path) -> None:
    tools("go")
    module = {
        "Sarama": "github.com/IBM/sarama" if row.version > "1.40" else "github.com/Shopify/sarama",
        "franz-go": "github.com/twmb/franz-go",
        "kafka-go": "github.com/segmentio/kafka-go",
    }[row.library]
    source = _KINDS[row.library][0]
    (folder / "main.go").write_text(source.read_text().replace("LIBRARY", module))
    run("go", "mod", "init", "steps", cwd=folder, GOTOOLCHAIN="local")
    run("go", "get", f"{module}@v{row.version}", cwd=folder, GOTOOLCHAIN="local")
    run("go", "mod", "tidy", cwd=folder, GOTOOLCHAIN="local")
    run("go", "build", "-o", "steps", ".", cwd=folder, GOTOOLCHAIN="local")


def _make_npm(row: Row, folder: Path) -> None:
    tools("node", "npm")
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": {row.library: row.version}}))
    run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--engine-strict", cwd=folder)


def _make_rust(row: Row, folder: Path) -> None:
    tools("cargo")
    (folder / "src").mkdir()
    source, clock = (SOURCES / "rskafka.rs").read_text(), 'chrono = "0.4"'
    if row.version < "0.4":
        clock = 'time = "0.3"'
        source = source.replace("chrono::Utc::now()", "time::OffsetDateTime::now_utc()")
        source = source.replace(", UnknownTopicHandling::Retry).await", ")").replace(", UnknownTopicHandling", "")
    (folder / "src" / "main.rs").write_text(source)
    name = f"steps-{row.version.replace('.', '-')}"
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\n'
        f'rskafka = {{ version = "={row.version}", default-features = false }}\n{clock}\n'
        'tokio = { version = "1", features = ["macros", "rt-multi-thread", "time"] }\n'
    )
    built = INSTALLED / "versions-rskafka"  # shared: most of what the versions need is the same
    run("cargo", "build", "--quiet", cwd=folder, CARGO_TARGET_DIR=str(built), CARGO_PROFILE_DEV_DEBUG="0")
    shutil.copy(built / "debug" / name, folder / "steps")


_JAVA: Final = ("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp")
_KINDS: Final[dict[str, tuple[Path, Callable[[Row, Path], None], Callable[[Path], Sequence[str]]]]] = {
    "Java": (CLIENTS / "Steps.java", make_java, lambda folder: (*_JAVA, f"{folder}:{folder}/*", "Steps")),
    **dict.fromkeys(
        ("confluent-kafka", "kafka-python", "aiokafka"),
        (SOURCES / "steps.py", _make_python, lambda folder: (f"{folder}/bin/python", f"{SOURCES}/steps.py")),
    ),
    "Sarama": (SOURCES / "sarama.go", _make_go, lambda folder: (f"{folder}/steps",)),
    "franz-go": (CLIENTS / "go" / "franz" / "main.go", _make_go, lambda folder: (f"{folder}/steps",)),
    "kafka-go": (SOURCES / "kafkago.go", _make_go, lambda folder: (f"{folder}/steps",)),
    **dict.fromkeys(
        ("kafkajs", "@platformatic/kafka"), (SOURCES / "steps.js", _make_npm, lambda _: ("node", f"{SOURCES}/steps.js"))
    ),
    "rskafka": (SOURCES / "rskafka.rs", _make_rust, lambda folder: (f"{folder}/steps",)),
}
"""By library its program, how it is installed, and its command."""


# --- How each is run --------------------------------------------------------------------------------------------------


class Proxy(Tap):
    """Knows the highest version of each api that was asked for."""

    def told(self) -> dict[int, int]:
        """By api key, since it was asked before."""
        found: dict[int, int] = {}
        for sent in self.sent:
            for api, version in map(api_of, frames(sent)):
                found[api] = max(version, found.get(api, 0))
            sent.clear()
        return found


@contextmanager
def brokers(folder: Path) -> Iterator[dict[str, Proxy]]:
    """A daemon and a Kafka, each behind a proxy whose address it advertises; by "seglog" and "kafka"."""
    with ExitStack() as stack:
        proxies = {}
        for name in ("seglog", "kafka"):
            proxies[name] = stack.enter_context(closing(Proxy(free_port())))
        ours, theirs = proxies["seglog"], proxies["kafka"]
        given = (
            f"listeners=PLAINTEXT://127.0.0.1:{ours.behind}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{ours.port}",
            "group.initial.rebalance.delay.ms=0",
        )
        arguments = [argument for setting in given for argument in ("--set", setting)]
        stack.enter_context(daemon(folder / "seglog", *arguments))
        kafka = Kafka(kafka_script(), folder / "kafka")
        theirs.behind = kafka.port
        advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{theirs.port}"
        stack.enter_context(kafka.running(advertised))
        yield proxies


def outcome_of(row: Row, proxy: Proxy) -> Outcome:
    """The steps of a row through a proxy. Raises AbsentError."""
    command, folder = command_of(row)
    proxy.told()
    topic = f"{row.library.strip('@').replace('/', '-')}-{row.version}-{os.urandom(3).hex()}".lower()
    steps = steps_told(command, folder, f"127.0.0.1:{proxy.port}", topic, row.library, " ".join(STEPS))
    return Outcome(steps, proxy.told())


# --- The page ---------------------------------------------------------------------------------------------------------

_HEAD: Final = f"""# Versions of clients

Each row is one version of a client that ran four steps against seglog and, beside it, against Apache Kafka {JUDGE}, by
`python -m tests.interop.client_versions`: create a topic, produce, read it as a member of a group and commit, and three
transactions, of which one is aborted. "all" is each step that the client has. The last column names the highest version
that it asked seglog for. A client that fails at both fails by itself; a row that works on Kafka alone
fails `make interop`.

| client | version | on seglog | on Kafka {JUDGE} | sends |
|---|---|---|---|---|
"""


def line_of(row: Row, ours: Outcome, theirs: Outcome) -> str:
    """The line of a row in the page."""
    sends = ", ".join(f"{name} {ours.asked[key]}" for key, name in SHOWN.items() if key in ours.asked)
    return f"| {row.library} | {row.version} | {_told(ours)} | {_told(theirs)} | {sends} |"


def _told(outcome: Outcome) -> str:
    failed = [step for step, wrong in outcome.steps.items() if wrong not in {"", "-"}]
    absent = [step for step, wrong in outcome.steps.items() if wrong == "-"]
    return (f"not: {', '.join(failed)}" if failed else "all") + (f"; has no {', '.join(absent)}" if absent else "")


def main(library: str = "", version: str = "") -> None:
    """Run the rows of a library, or all; print what is wrong, and write each row into the page when it has run."""
    with tempfile.TemporaryDirectory() as folder, brokers(Path(folder)) as proxies:
        for row in ROWS:
            if library not in {"", row.library} or version not in {"", row.version}:
                continue
            try:
                ours, theirs = outcome_of(row, proxies["seglog"]), outcome_of(row, proxies["kafka"])
            except AbsentError as error:
                line = f"| {row.library} | {row.version} | not run | not run | {' '.join(str(error).split())[:90]} |"
            else:
                line = line_of(row, ours, theirs)
                for name, outcome in (("seglog", ours), ("Kafka", theirs)):
                    for step, wrong in outcome.steps.items():
                        if wrong not in {"", "-"}:
                            print(f"  {row.name} on {name}, {step}: {wrong}")
            print(line, flush=True)
            write(row, line)


def write(row: Row, line: str) -> None:
    """Put the line of a row into the page, in its place."""
    lines = {tuple(each.split(" | ")[:2]): each for each in [*PAGE.read_text(encoding="utf-8").splitlines(), line]}
    kept = (lines.get((f"| {each.library}", each.version)) for each in ROWS)
    PAGE.write_text(_HEAD + "".join(f"{each}\n" for each in kept if each is not None), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
