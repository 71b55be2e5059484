"""Random requests, asked of a real Kafka and of seglog at once; some with Kafka's answers kept, for runs without one.

``python -m tests.interop.kafka_random_cases`` asks a real Kafka and writes ``kafka_random_answers.json``.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.interop.kafka_cases import Case
from tests.interop.kafka_random import Ask, Requests, Step
from tests.interop.kafka_random_differences import Difference, unexplained
from tests.interop.kafka_random_side import Side
from tests.interop.kafka_wire import Plain
from tests.interop.peer import Kafka, kafka_script
from tests.processes import kafka_daemon

ANSWERS: Final = Path(__file__).with_name("kafka_random_answers.json")

KEPT_SEED: Final = 13
KEPT_REQUESTS: Final = 500
"""Of the requests whose answers are kept."""

_KEPT_ANSWER_MAX: Final = 3_000
"""Characters of an answer that is kept; a longer one is not compared without a Kafka."""

SETTINGS: Final = (
    "auto.create.topics.enable=false",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.session.timeout.ms=600000",  # members do not beat by the clock
    "log.retention.ms=-1",
)
"""Of both."""

_KAFKA_SETTINGS: Final = (
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.max.session.timeout.ms=600000",
    "offsets.topic.num.partitions=1",
)
_SETTLE_SECONDS: Final = 0.06
"""What a real Kafka gets after a change until all of its parts know of it."""


@contextmanager
def kafka_side(folder: Path) -> Iterator[Side]:
    """A real Kafka whose data are below ``folder``."""
    with (
        Kafka(kafka_script(), folder / "kafka").running(*SETTINGS, *_KAFKA_SETTINGS) as kafka,
        Side(kafka.port, str(kafka.directory), _SETTLE_SECONDS) as side,
    ):
        yield side


@contextmanager
def our_side(folder: Path) -> Iterator[Side]:
    """A daemon of seglog whose data are below ``folder``."""
    with (
        kafka_daemon(folder / "seglog", *SETTINGS) as running,
        Side(running.kafka_port, str(running.directory)) as side,
    ):
        yield side


def compared(ours: Side, asked: Iterable[tuple[Step, list[Plain]]]) -> Iterator[str]:
    """Ask requests that Kafka has answered; what is different without a reason, for people to read."""
    for step, kafka in asked:
        for each, theirs, own in zip(step, kafka, ours.answers(step), strict=True):
            if theirs == TOO_LONG:
                continue
            places = list(unexplained(each.case, theirs, json.loads(json.dumps(own))))
            if places:
                yield _told(each.case, places)


def _told(case: Case, places: list[Difference]) -> str:
    lines = [f"{case.title}: {case.api} version {case.version} {json.dumps(case.fields)}"]
    lines += [f"  {place.path}: {place.ours!r}, and Kafka has {place.kafka!r}" for place in places]
    kafka, ours = places[0].answers
    return "\n".join((*lines, f"  Kafka: {json.dumps(kafka)}", f"  ours:  {json.dumps(ours)}"))


TOO_LONG: Final = "too long"


def kept() -> Iterator[tuple[Step, list[Plain]]]:
    """The requests whose answers are kept."""
    for asked, answers in json.loads(ANSWERS.read_text(encoding="utf-8")):
        yield tuple(Ask(connection, Case(*case), who) for connection, case, who in asked), answers


def captured(folder: Path) -> list[Any]:
    """The requests of ``KEPT_SEED`` with a real Kafka's answers."""
    with kafka_side(folder) as kafka:
        return [
            [
                step,
                [TOO_LONG if len(json.dumps(answer)) > _KEPT_ANSWER_MAX else answer for answer in kafka.answers(step)],
            ]
            for step in Requests(KEPT_SEED).steps(KEPT_REQUESTS)
        ]


def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder:
        lines = ",\n".join(json.dumps(item) for item in captured(Path(folder)))
    ANSWERS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
