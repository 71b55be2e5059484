"""What the documents say is true: their commands run, their programs work, their hex decodes, their names exist."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts import pages
from scripts.pages import WRITTEN
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.checkpoint_files import encode_offsets
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, rewrite_offset_and_epoch, verify_crc
from seglog_protocol.records import decode_records
from seglog_protocol.segment_files import offset_entries, segment_file_name, time_entries
from tests.processes import Daemon, clean_environment, daemon, seglog
from tests.support import REPOSITORY, each_case

PACKAGES = (
    "protocol/seglog_protocol",
    "broker/seglog_broker",
    "clients/seglog",
    "clients/seglog_console",
    "clients/seglog_spark",
)
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def _read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def _section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one of its rank or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title!r}"
    return found[2]


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str
    line: int


def _blocks(text: str) -> list[Block]:
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def _tables(text: str) -> list[list[list[str]]]:
    """Every table's rows below its heading; cells without their backticks and stars."""
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [
        [[cell.strip(" `*") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in tables
    ]


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((REPOSITORY / package).rglob("*.py"))


# --- README -----------------------------------------------------------------------------------------------------------

# Programs of a README line that need what a test does not have, or do what the test has done already.
_NOT_RUN = {"make", ".", "docker", "pip"}

_WAITED = re.compile(r"^seglog: (waiting for .*|\S+ is back after .*)\n", re.MULTILINE)
"""What a client also says on a busy machine, where a broker takes its time to answer."""

_SHELL = """set -euo pipefail
python() {{ {python} "$@"; }}
seglog() {{ {python} -m seglog.cli "$@"; }}
seglogd() {{ {python} -m seglog_broker "$@"; }}
"""


class _Reader:
    """Somebody who does what the README says, line by line, on another port."""

    def __init__(self, running: Daemon, folder: Path) -> None:
        self.running = running
        [self.kafka] = [event.get("kafka") for event in running.logged if event["event"] == "broker_ready"]
        self.folder = folder
        self.said = ""
        self.environment = clean_environment(SEGLOG_SERVER=running.address)
        del self.environment["PYTHONUNBUFFERED"]

    def shell(self, block: Block) -> str:
        """Run a block's commands; what they print, in order."""
        commands = []
        for line in block.text.replace("make quickstart", "seglog quickstart").replace("\\\n", " ").splitlines():
            programs = {part.split()[0] for part in line.split(" | ")}
            if programs <= _NOT_RUN:
                continue
            if programs == {"seglogd"} and line.split()[1] in {"init", "certificates"}:
                self.said += self._run([sys.executable, "-m", "seglog_broker", *self._here(line)], block)
                continue
            if programs == {"seglogd"} and "SASL_SSL" in line:
                self.serve_accounts(self._here(line))
                continue
            if programs == {"seglogd"} and line.split()[1] != "dump":
                self.serve(line.split()[1:])
                continue
            assert programs <= {"seglog", "seglogd", "python"}, f"line {block.line}: who tests {line!r}?"
            here = line.replace("./data/", f"{self.running.directory}/")
            commands.append(here.replace("./lake/", f"{self.folder}/lake/"))
        script = _SHELL.format(python=sys.executable) + "\n".join(commands)
        return self._run(["bash", "-c", script], block)

    def _here(self, line: str) -> list[str]:
        """The arguments of a line, with its files in a folder of the test, and on free ports of this machine."""
        here = line.replace("./", f"{self.folder}/").replace("0.0.0.0:9192", "127.0.0.1:0")
        return here.replace("0.0.0.0:9092", "127.0.0.1:0").split()[1:]

    def serve_accounts(self, arguments: list[str]) -> None:
        """Start the daemon of the README that wants accounts, and log in with the password that was shown."""
        [password] = re.findall(r"^    ([\w-]{20,})$", self.said, re.MULTILINE)
        secret = self.folder / "password"
        secret.write_text(password)
        secret.chmod(0o600)
        with daemon(self.folder / "secure", *arguments, "--log-format", "json") as started:
            server = f"seglogs://localhost:{started.address.rpartition(':')[2]}"
            ping = ("ping", "--ca", f"{self.folder}/certs/authority.pem", "--user", "admin")
            assert seglog(server, *ping, "--password-file", str(secret)).returncode == 0
            assert seglog(server, *ping).returncode != 0
            assert started.stop() == 0

    def serve(self, arguments: list[str]) -> None:
        """Start another daemon as the README does, but on a free port and with data of its own."""
        data = self.folder / "another"
        own = ("--data", str(data), "--listen", "127.0.0.1:0", "--log-format", "json")
        with daemon(data, *arguments, *own) as started:
            assert seglog(started.address, "ping").returncode == 0
            assert started.stop() == 0

    def program(self, block: Block) -> str:
        """Run a Python block; what it prints."""
        path = self.folder / "program.py"
        text = block.text.replace("localhost:9192", self.running.address).replace("localhost:9092", self.kafka or "")
        text = text.replace("./lake/", f"{self.folder}/lake/")
        path.write_text(text, encoding="utf-8")
        warnings = [] if "from kafka import" in text else ["-W", "error"]  # kafka-python has some of its own
        return self._run([sys.executable, *warnings, str(path)], block)

    def _run(self, command: list[str], block: Block) -> str:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, f"block at line {block.line}:\n{done.stdout}"
        return re.sub(_WAITED, "", done.stdout)


@pytest.mark.parametrize("document", ["README.md", "docs/ARCHIVE.md", "docs/ARROW.md", "docs/GROUPS.md"])
def test_commands_and_programs_print_what_the_document_says(document: str, tmp_path: Path) -> None:
    with daemon(tmp_path / "data", "--set", "listeners=PLAINTEXT://127.0.0.1:0") as running:
        reader = _Reader(running, tmp_path)
        printed = None
        ran = []
        for block in _blocks(_read(document)):
            ran.append(block.language)
            if block.language == "text":
                assert printed is not None, f"line {block.line}: output of nothing"
                pattern = ".*".join(re.escape(part) for part in block.text.rstrip("\n").split("…"))
                assert re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL), f"line {block.line}:\n{printed}"
            elif block.language == "python":
                printed = reader.program(block)
            else:
                assert block.language == "sh", f"line {block.line}: {block.language!r} is not tested"
                printed = reader.shell(block)
        assert {"sh", "text", "python"} == set(ran)


# --- All documents ----------------------------------------------------------------------------------------------------


@each_case("document", DOCUMENTS, ids=_name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _page(document)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            found = document.parent / path if path else document
            assert found.exists(), f"{_name(document)} links to {target}"
            assert not anchor or anchor in _anchors(found), f"{_name(document)} links to {target}"


def _anchors(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", _page(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def _page(document: Path) -> str:
    """The text of a document, whole where the file has the beginning alone."""
    is_written = document.parent.name == "docs" and document.name in WRITTEN
    return WRITTEN[document.name]() if is_written else document.read_text(encoding="utf-8")


def test_the_file_of_a_written_page_says_how_to_have_it_and_links_to_what_is_there(tmp_path: Path) -> None:
    pages.main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN.keys()
    for name in WRITTEN:
        beginning, whole = _read(f"docs/{name}"), (tmp_path / name).read_text(encoding="utf-8")
        assert "`make docs`" in beginning
        assert f"`build/pages/{name}`" in beginning
        assert len(whole) > 5 * len(beginning)
        assert whole.partition("\n")[0] == beginning.partition("\n")[0]
        for target in re.findall(r"\]\(([^)#\s]+)", beginning):
            assert (REPOSITORY / "docs" / target).exists(), f"{name} links to {target}"


def _our_text() -> Iterator[tuple[str, str]]:
    """Every document and source that is not a test."""
    folders = ("broker", "protocol", "clients", "docs", "examples", "deploy", "benchmarks")
    paths = [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    paths += REPOSITORY.glob("*")
    for path in sorted(paths):
        if (
            path.name != ".git"
            and path.is_file()
            and (path.suffix in {".py", ".md", ".toml", ".txt"} or not path.suffix)
        ):
            yield _name(path), path.read_text(encoding="utf-8")


def test_nothing_but_tests_knows_of_places_outside_the_repository() -> None:
    # The configuration has to know the name, so as not to take it for a key.
    may_name_the_variable = {"CONTRIBUTING.md", "broker/seglog_broker/config/sources.py"}
    seen = 0
    for name, text in _our_text():
        seen += 1
        assert "../shared" not in text, name
        assert not re.search(r"(?<![\w.])/(work|root)\b", text), name
        assert not re.search(r"pypi\.org|pythonhosted|docker\.io|ghcr\.io|quay\.io|index-url", text), name
        assert "SEGLOG_SHARED" not in text or name in may_name_the_variable, name
    assert seen > 50


def test_the_dockerfile_copies_only_what_is_there() -> None:
    """And what .dockerignore lets through."""
    allowed = set(re.findall(r"^!(\S+)$", _read(".dockerignore"), re.MULTILINE))
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.*)$", _read("Dockerfile"), re.MULTILINE):
        copied |= set(line.split()[:-1])
    assert copied == allowed
    assert all((REPOSITORY / name).exists() for name in copied)


# --- ARCHITECTURE -----------------------------------------------------------------------------------------------------


def test_the_table_has_exactly_the_packages_that_exist() -> None:
    """Those of the broker and of the protocol."""
    named = {row[0] for row in _tables(_section(_read("ARCHITECTURE.md"), "The packages"))[0]}
    there = {_name(path.parent) for path in _sources() if path.name != "__init__.py"}
    below = (
        "clients/seglog/",
        "clients/seglog_console/",
        "clients/seglog_spark/",
        "broker/seglog_broker/inspect/",
        "broker/seglog_broker/workers/",
    )
    assert named == {package for package in there if not package.startswith(below)}


def test_every_module_begins_with_a_sentence_for_the_list_of_modules() -> None:
    for path in _sources():
        if path.name != "__main__.py":
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            assert re.fullmatch(r'""".+[.:,](""")?', first), f"{_name(path)}: {first!r}"


@each_case(
    "document",
    [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs/STORAGE.md",
        "docs/decisions/0008-recovery-cuts-torn-tails-only.md",
        "docs/decisions/0012-fetches-that-wait-have-no-task.md",
        "docs/decisions/0017-requests-are-served-together.md",
    ],
)
def test_files_classes_and_functions_named_in_documents_exist(document: str) -> None:
    text = re.sub(r"^```.*?^```$", "", _read(document), flags=re.MULTILINE | re.DOTALL)
    members, paths = _members(), _paths()
    for token in set(re.findall(r"`([^`\n]+)`", text)):
        if token.startswith("./"):
            continue  # made when something runs
        if re.fullmatch(r"[\w./-]+/[\w./-]*|[\w./-]+\.(py|md|txt|toml)", token):
            wanted = f"/{token.strip('/')}"
            known = any(f"/{path}".endswith(wanted) for path in paths)
        elif re.fullmatch(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*\.\w+", token):
            owner, member = token.split(".")
            known = member in members.get(owner, ())
        elif re.fullmatch(r"(?:[A-Z][a-z]+)+", token):
            known = token in members
        elif re.fullmatch(r"[a-z]+(_[a-z]+)+", token):
            known = token in _words()
        else:
            continue
        assert known, f"{document} names {token}"


def _walk(folder: Path) -> Iterator[Path]:
    """Files and folders of the repository; not those that tools leave."""
    for path in folder.iterdir():
        if path.name in {".git", ".venv", "build", "dist", "data"} or path.name.endswith(("cache", "cache__")):
            continue
        yield path
        if path.is_dir():
            yield from _walk(path)


@cache
def _paths() -> list[str]:
    return [_name(path) for path in _walk(REPOSITORY)]


@cache
def _words() -> set[str]:
    """Every word of the sources."""
    return {word for path in _sources() for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


@cache
def _members() -> dict[str, set[str]]:
    """Class -> methods, fields and attributes; of classes that share a name, all of them."""
    found: dict[str, set[str]] = {}
    for path in _sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        names.add(inner.name)
                    elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        names.add(inner.attr)
    return found


# --- STORAGE ----------------------------------------------------------------------------------------------------------

_BASE_OFFSET = 1000
_TIMESTAMPS = (1000, 1001, 1002, 5000, 1004, 1005)


class Example(NamedTuple):
    """The segment of the worked example, made by the code the page describes, and the page's tables about it."""

    segment: Segment
    fs: ForgetfulFileSystem
    batch: list[list[str]]
    offset_index: list[list[str]]
    time_index: list[list[str]]
    lookups: list[list[str]]


@pytest.fixture
def example() -> Example:
    fs = ForgetfulFileSystem()
    fs.make_directory("/example-0")
    segment = Segment(*(fs, HandlePool(fs), "/example-0", _BASE_OFFSET), index_bytes_max=1 << 20, index_interval=100)
    segment.create()
    for number, timestamp in enumerate(_TIMESTAMPS):
        records = [(timestamp, b"commit", value, ()) for value in (b"Fix lookup, v1.", b"Fix lookup, v2.")]
        batch = bytearray(encode_batch(records))
        rewrite_offset_and_epoch(batch, 0, _BASE_OFFSET + 2 * number, 0)
        segment.append((batch,), ((len(batch), _BASE_OFFSET + 2 * number + 1, timestamp),))
    segment.close()
    return Example(segment, fs, *_tables(_section(_read("docs/STORAGE.md"), "A worked example")))


def _joined(rows: Iterable[list[str]], column: int) -> bytes:
    return b"".join(bytes.fromhex(row[column]) for row in rows)


def test_the_batch_of_the_worked_example_decodes_to_what_stands_beside_it(example: Example) -> None:
    data = _joined(example.batch, 1)
    assert data == read_file(example.fs, example.segment.log_path)[:117]
    position = 0
    for row in example.batch:
        assert int(row[0]) == position
        position += len(bytes.fromhex(row[1]))
    header = parse_header(data)
    assert verify_crc(data, 0, header)
    assert header.size == len(data) == 117
    assert [int(row[3]) for row in example.batch[:13]] == list(header)
    first, second = decode_records(header, data)
    shown = [row[3] for row in example.batch[13:] if row[3]]
    assert shown == [text.decode() for record in (first, second) for text in (record.key, record.value) if text]


def test_the_indexes_of_the_worked_example_decode_to_what_stands_beside_them(example: Example) -> None:
    offsets, times = _joined(example.offset_index, 0), _joined(example.time_index, 0)
    assert offsets == read_file(example.fs, example.segment.offset_index.path)
    assert times == read_file(example.fs, example.segment.time_index.path)
    # The same bytes as Kafka's own classes wrote for a segment of this shape.
    assert offsets.hex() == "000000030000007500000005000000ea000000070000015f00000009000001d40000000b00000249"
    assert times.hex() == "00000000000003e90000000300000000000003ea00000005000000000000138800000007"
    assert [[int(cell) for cell in row[1:]] for row in example.offset_index] == [
        [entry.relative_offset, _BASE_OFFSET + entry.relative_offset, entry.position]
        for entry in offset_entries(offsets)
    ]
    assert [[int(cell) for cell in row[1:]] for row in example.time_index] == [
        [entry.timestamp, entry.relative_offset, _BASE_OFFSET + entry.relative_offset] for entry in time_entries(times)
    ]
    assert all(
        f"`{segment_file_name(_BASE_OFFSET, suffix)}`" in _read("docs/STORAGE.md") for suffix in (".log", ".index")
    )


def test_the_lookups_of_the_worked_example_find_what_it_says(example: Example) -> None:
    segment = example.segment
    for wanted, floor, begins, found in example.lookups:
        kind, number = wanted.split()
        if kind == "offset":
            entry = segment.offset_index.lookup(int(number))
            shown = f"{entry.offset} → {entry.position}" if entry.position else "none"
            offset: int | None = int(number)
        else:
            time = segment.time_index.lookup(int(number))
            entry = segment.offset_index.lookup(time.offset)
            shown = f"{time.timestamp} → {time.offset}" if time.timestamp >= 0 else "none"
            moment = segment.find_timestamp(int(number), _BASE_OFFSET)
            offset = None if moment is None else moment.offset
        assert (floor, int(begins)) == (shown, entry.position), wanted
        located = None if offset is None else segment.find(offset)
        place = (
            "none: the next segment is asked" if located is None else f"offset {offset}, position {located.position}"
        )
        assert found == place, wanted


def test_positions_in_the_tables_of_formats_follow_from_their_types() -> None:
    text = _read("docs/STORAGE.md")
    sizes = {"int64": 8, "int32": 4, "uint32": 4, "int16": 2, "int8": 1, "": 0}
    for title, size in (("The record batch", HEADER_SIZE), ("The offset index", 8), ("The time index", 12)):
        position = 0
        for row in _tables(_section(text, title))[0]:
            assert int(row[0]) == position, row
            position += sizes[row[1]]
        assert position == size


def test_the_examples_of_our_own_files_are_those_of_the_code() -> None:
    """The checkpoint, and the fields of the files that Kafka does not have."""
    text = _read("docs/STORAGE.md")
    lines = _blocks(_section(text, "Checkpoints"))[0].text.splitlines()
    written = encode_offsets({("commits", 0): 31597, ("commits", 1): 34291}).decode().splitlines()
    assert [line.partition("  ")[0] for line in lines] == written
    ours = _section(text, "Our own files")
    for field in (*fields(Topic), *fields(PartitionState), *fields(DamagedRange)):
        assert f"`{field.name}`" in ours, field.name
