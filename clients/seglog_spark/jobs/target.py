"""Where a job writes when it writes to a topic: the topic itself, and under a job id what was planned for it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from seglog.cli.arguments import Options
from seglog.cli.exits import UsageError
from seglog.client import Client
from seglog.words import duration_of
from seglog_protocol.errors import InvalidPartitionsError
from seglog_protocol.messages import TopicDescription
from seglog_spark.jobs.progress import Progress
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import WriteOptions, parse_write_options


def write_options(options: Options) -> WriteOptions:
    """What the command line says, in the sink's words; OptionError for contradictions."""
    given = {
        "servers": options.server,
        "topic": options.to_topic,
        "ack": options.ack,
        "compression": options.compression,
    }
    if options.job_id is not None:
        given |= {"deliveryGuarantee": "effectively-once", "jobId": options.job_id}
    return parse_write_options(given, "batch")


def sink_options(write: WriteOptions) -> dict[str, str]:
    """The same for ``format("seglog")``."""
    assert write.topic is not None
    given = {"servers": write.server, "topic": write.topic, "ack": write.ack, "compression": write.codec.name.lower()}
    if write.job_id is not None:
        given |= {"deliveryGuarantee": write.guarantee, "jobId": write.job_id, "marksTopic": write.marks_topic}
    return given


def prepare_topic(client: Client, name: str, partitions: int, preserve: Sequence[str], progress: Progress) -> None:
    """See that the topic is there, with at least so many partitions if these are preserved.

    A topic that is made keeps its records for ever: they may be old. Raises InvalidPartitionsError, and UsageError
    where a topic that is there would not keep what is to be preserved.
    """
    if name not in {topic.name for topic in client.topics()}:
        client.create_topic(name, partitions=partitions, config={"retention.ms": -1}, exist_ok=True)
        progress.say(f"made the topic {name}, partitions={partitions}, retention.ms=-1")
    found = client.describe_topic(name)
    if "partition" in preserve and found.partitions < partitions:
        raise InvalidPartitionsError(
            f"{name} has fewer partitions ({found.partitions}) than there are to preserve ({partitions}); leave "
            "partition out of --preserve, or name another topic"
        )
    if "timestamp" in preserve:
        _check_times(found, progress)


def _check_times(topic: TopicDescription, progress: Progress) -> None:
    values = {key: entry.value for key, entry in (topic.config or {}).items()}
    if values.get("message.timestamp.type") == "LogAppendTime":
        raise UsageError(
            f"{topic.name} stamps its records itself (message.timestamp.type=LogAppendTime): leave timestamp out of "
            "--preserve, or name another topic"
        )
    retention_ms = int(values.get("retention.ms", "-1"))
    if retention_ms >= 0 and "delete" in values.get("cleanup.policy", "delete"):
        progress.say(f"{topic.name} lets records go when they are {duration_of(retention_ms)} old (retention.ms)")


class Pinned(NamedTuple):
    """The ranges that a job reads, and whether it has written them all."""

    ranges: list[OffsetRange]
    is_finished: bool


def pin(
    marks: MarksTopic, job_id: str, arguments: Mapping[str, Any], ranges: Sequence[OffsetRange], progress: Progress
) -> Pinned:
    """The ranges of a job that is run for the first time, and of one that is run again those that it had then.

    Topics grow, and ``-1h`` moves on: run again under its id, a job has to read what it has read before. UsageError
    when it was another job.
    """
    before = marks.plan(job_id)
    if before is None:
        marks.note_plan(job_id, {"arguments": dict(arguments), "ranges": [list(r) for r in ranges]})
        return Pinned(list(ranges), is_finished=False)
    if before["arguments"] != dict(arguments):
        raise UsageError(
            f"--job-id {job_id} was given to another job: {_words(before['arguments'])}; this one is "
            f"{_words(arguments)}, and needs an id of its own"
        )
    is_finished = marks.finished(job_id) is not None
    if not is_finished:
        progress.say(f"going on with the job {job_id} that did not end")
    return Pinned([OffsetRange(*r) for r in before["ranges"]], is_finished)


def _words(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in arguments.items() if value not in (None, False, []))


@dataclass(slots=True)
class Pace:
    """At most ``rate`` records a second, by the clock and the sleep that are given."""

    rate: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _due: float | None = None

    def __call__(self, records: int) -> None:
        """Return when it is time for so many more."""
        now = self.clock()
        due = now if self._due is None else max(self._due, now)
        if due > now:
            self.sleep(due - now)
        self._due = due + records / self.rate
