"""A broker of pytest's fixtures, and what of it belongs to the present test: its log lines, and its records."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from seglog.client import Client
from seglog.testing.broker import Broker
from seglog.testing.errors import NotPossibleError
from seglog.testing.reading import describe_record

LINES_MAX: Final = 50
LINE_CHARACTERS_MAX: Final = 300
TOPICS_MAX: Final = 5
PARTITIONS_MAX: Final = 16
RECORDS_MAX: Final = 5
"""What a report shows at most: lines of the log, the newest; topics, and the last records of each."""


class SessionBroker(Broker):
    """The broker that tests share: no test can move its clock, which could not be moved back, or close it for good."""

    def close(self) -> None:
        """Stop it: it starts again after the test."""
        self.stop()

    def jump_clock(self, seconds: float, *, wall_only: bool = False) -> None:
        """Raise NotPossibleError."""
        del seconds, wall_only
        raise NotPossibleError(
            "seglog_broker has one clock for all tests, which does not go back: move that of seglog_own_broker"
        )


class Watched:
    """A broker, as the fixture ``fixture``."""

    def __init__(self, fixture: str, broker: Broker) -> None:
        self.fixture = fixture
        self.broker = broker
        self._last_line: dict[str, Any] | None = None  # of the log, before the test
        self._sizes: dict[str, int] = {}  # of the topics, before the test

    def begin(self, *, is_used: bool) -> None:
        """Another test begins. Raises what a broker raises that does not start."""
        if is_used:
            self.mend()
        self._last_line = next(reversed(self.broker.log), None)

    def mend(self) -> None:
        """Start it if it does not run, and end its faults."""
        if not self.broker.is_running:
            self.broker.stop()  # its client, too, where a process was killed
        self.broker.heal()
        self.broker.start()
        self._sizes = _sizes(self.broker.client)  # asked over another connection, where the test has cut this one

    def sections(self, topic: str | None) -> list[tuple[str, str]]:
        """For the report of a test that failed, titles and texts. ``topic`` is the one that was made for it."""
        log = _log_text(self._lines()) or "The broker has logged nothing during this test."
        return [(f"{self.fixture}: log", log), (f"{self.fixture}: topics", self._topics_text(topic))]

    def _lines(self) -> list[dict[str, Any]]:
        lines = self.broker.log
        for index in range(len(lines) - 1, -1, -1):
            if lines[index] is self._last_line:
                return lines[index + 1 :]
        return lines

    def _topics_text(self, topic: str | None) -> str:
        if not self.broker.is_running:
            return "The broker is not running: the test has stopped or crashed it."
        try:
            return _topics_text(self.broker.client, self._sizes, topic)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the report goes on
            return f"They could not be read: {failure}"


def _sizes(client: Client) -> dict[str, int]:
    return {topic.name: topic.size for topic in client.topics() if not topic.name.startswith("__")}


def _log_text(lines: list[dict[str, Any]]) -> str:
    texts = [_line_text(line) for line in lines[-LINES_MAX:]]
    if len(lines) > LINES_MAX:
        texts.insert(0, f"({len(lines) - LINES_MAX} earlier lines are left out)")
    return "\n".join(texts)


def _line_text(line: Mapping[str, Any]) -> str:
    facts = {name: value for name, value in line.items() if name not in {"timestamp", "level", "event", "exception"}}
    words = [str(line.get("timestamp", ""))[11:23], str(line.get("level", "")), str(line["event"])]
    text = " ".join([*words, *(f"{name}={value}" for name, value in facts.items())]).strip()
    if len(text) > LINE_CHARACTERS_MAX:
        text = text[:LINE_CHARACTERS_MAX] + "…"
    trace = str(line.get("exception", "")).splitlines()
    return "\n".join([text, *trace[-LINES_MAX:]])


def _topics_text(client: Client, before: Mapping[str, int], own: str | None) -> str:
    sizes = _sizes(client)
    names = [name for name, size in sorted(sizes.items()) if size != before.get(name) or name == own]
    names.sort(key=lambda name: name != own)
    texts = [_topic_text(client, name) for name in names[:TOPICS_MAX]]
    if len(names) > TOPICS_MAX:
        texts.append(f"and {len(names) - TOPICS_MAX} topics more")
    return "\n".join(texts) or "The test has added no records to any topic."


def _topic_text(client: Client, topic: str) -> str:
    partitions = client.offsets(topic)
    ends = {each.partition: each.latest for each in partitions[:PARTITIONS_MAX]}
    head = f"{topic}, end offsets {ends}{'…' * (len(partitions) > PARTITIONS_MAX)}"
    filled = [each for each in partitions if each.latest > each.earliest][:PARTITIONS_MAX]
    start = {each.partition: max(each.earliest, each.latest - RECORDS_MAX) for each in filled}
    if not filled:
        return head
    with client.consumer(
        topic, partitions=list(start), start=start, on_out_of_range="earliest", isolation="read_committed"
    ) as consumer:
        records = sorted(consumer, key=attrgetter("timestamp"))[-RECORDS_MAX:]
    return "\n".join([head, *map(describe_record, records)])
