"""Raw requests that a real Kafka and a daemon of seglog are asked, and how their answers are compared."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog_protocol.kafka import messages
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.interop.peer import JUDGE, KAFKA_VERSION

NO_ID: Final = "00" * 16
UNKNOWN_ID: Final = "0123456789abcdef0123456789abcdef"

NO_ANSWER: Final = "there is none"

Fields = Mapping[str, Plain]


class Case(NamedTuple):
    """One request. Text in its fields may name what only a run knows: ``{id of plain}``, ``{log_dir}``."""

    title: str
    api: str
    version: int
    fields: Fields


class Difference(NamedTuple):
    """Why the answer to a case differs, and what seglog has at each place that does."""

    why: str
    ours: Mapping[str, Plain]


def topic_ids(wire: Wire) -> dict[str, str]:
    """The ids of all topics, in hex, by name."""
    answer = wire.ask(request("Metadata", {"topics": None}), 12)
    assert isinstance(answer, messages.MetadataResponse)
    return {topic.name or "": topic.topic_id.hex() for topic in answer.topics}


def create_topics(wire: Wire, topics: Iterable[Fields]) -> None:
    """Make topics, given as fields of CreateTopics."""
    made = wire.ask(request("CreateTopics", {"topics": list(topics), "timeout_ms": 30_000}), 7)
    assert isinstance(made, messages.CreateTopicsResponse)
    assert not any(topic.error_code for topic in made.topics), made


def ask(wire: Wire, case: Case, known: Mapping[str, str]) -> Plain:
    """The answer, None for a closed connection; ``known`` has the values for names in the fields of the case."""
    return plain(wire.ask(request(case.api, replaced(case.fields, known)), case.version))


def replaced(value: Plain, known: Mapping[str, str]) -> Plain:
    """The value with what is ``known`` in the place of its names."""
    match value:
        case str():
            return known.get(value, value)
        case dict():
            return {name: replaced(item, known) for name, item in value.items()}
        case list():
            return [replaced(item, known) for item in value]
    return value


def settled(value: Plain, scalar: Callable[[str, Plain], Plain], field: str = "") -> Plain:
    """An answer with each scalar as ``scalar`` has it, given the name of its field; lists of structs in one order."""
    match value:
        case dict():
            return {name: settled(item, scalar, name) for name, item in value.items()}
        case list():
            items = [settled(item, scalar) for item in value]
            return sorted(items, key=json.dumps) if any(isinstance(item, dict) for item in items) else items
    return scalar(field, value)


ByName = Callable[[dict[str, Any]], dict[str, Any]]
"""Answers as they are looked at one by one: where a case has many of them, each has a name."""


def kept(file: Path, version: str = JUDGE, by_name: ByName = dict) -> dict[str, Any]:
    """A Kafka's answers: ``file`` has the judge's, one beside it what another version has in their place."""
    found = by_name(json.loads(file.read_text(encoding="utf-8")))
    other = _of_version(file, version)
    if version != JUDGE and other.exists():
        found |= json.loads(other.read_text(encoding="utf-8"))
    return {title: answer for title, answer in found.items() if answer != NO_ANSWER}


def keep(
    file: Path, found: Mapping[str, Any], shown: Callable[[Any], str] = json.dumps, by_name: ByName = dict
) -> None:
    """Write the answers of the Kafka that runs, each as ``shown``; of another than the judge only those that differ."""
    if KAFKA_VERSION != JUDGE:
        judge, other = kept(file, by_name=by_name), by_name(as_json(found))
        names = [name for name in judge | other if judge.get(name, NO_ANSWER) != other.get(name, NO_ANSWER)]
        found = {name: other.get(name, NO_ANSWER) for name in names}
    lines = (f"{json.dumps(title)}: {shown(answer)}" for title, answer in found.items())
    _of_version(file, KAFKA_VERSION).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def rewrite(
    file: Path, captured: Callable[[Path], Mapping[str, Any]], shown: Callable[[Any], str] = json.dumps
) -> None:
    """Keep what a Kafka answers whose data are in a folder for so long."""
    with tempfile.TemporaryDirectory() as folder:
        keep(file, captured(Path(folder)), shown)


def as_json(found: Mapping[str, Any]) -> Any:
    """Answers as a file has them."""
    return json.loads(json.dumps(found))


def _of_version(file: Path, version: str) -> Path:
    return file if version == JUDGE else file.with_name(f"{file.stem}_{version}.json")


def unexpected(
    answered: Iterable[tuple[Case, Plain]],
    kept: Mapping[str, Plain],
    expected: Mapping[str, Difference],
    differences: Callable[[str, Plain, Plain], Iterator[tuple[str, Any, Any]]],
) -> list[str]:
    """Where answers are neither Kafka's ``kept`` ones nor as ``expected``: a line for each place."""
    wrong = []
    for case, answer in answered:
        ours_by_place = expected[case.title].ours if case.title in expected else {}
        found = {
            place: (kafka, ours)
            for place, kafka, ours in differences(case.api, kept[case.title], json.loads(json.dumps(answer)))
        }
        for place in found.keys() | ours_by_place.keys():
            kafka, ours = found.get(place, ("as ours", "as Kafka's"))
            if place not in ours_by_place or ours != ours_by_place[place]:
                wrong.append(f"{case.title}: {place}: {ours!r}, and Kafka has {kafka!r}")
    return wrong
