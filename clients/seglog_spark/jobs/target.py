"""Where a job writes when it writes to a topic: the topic itself, and under a job id what was planned for it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from seglog.cli.arguments import Options
from seglog.cli.exits import UsageError
from seglog.client import Client
from seglog.formatting import count_of, duration_of
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
    """The ranges that a job reads, and whether it has written them all.

    ``left_out``: offsets that it would read now and did not read when it was first run.
    """

    ranges: list[OffsetRange]
    is_finished: bool = False
    left_out: int = 0


def begin(
    client: Client,
    write: WriteOptions,
    arguments: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    preserve: Sequence[str],
    progress: Progress,
) -> Pinned:
    """What to write, to a topic that is there from now on; where there is nothing to write, nothing is made or noted.

    Topics grow, and ``-1h`` moves on: run again under its id, a job has to read what it has read before. Raises what
    ``prepare_topic`` and ``pinned`` raise.
    """
    assert write.topic is not None
    marks, arguments = MarksTopic(client, write), {**arguments, "to": write.topic}
    before = None if write.job_id is None else pinned(marks, write.job_id, arguments, ranges, progress)
    found = before or Pinned(list(ranges))
    if found.is_finished or not any(r.size for r in found.ranges):
        return found
    prepare_topic(client, write.topic, len(found.ranges), preserve, progress)
    if write.job_id is not None and before is None:
        marks.note_plan(write.job_id, {"arguments": arguments, "ranges": [list(r) for r in ranges]})
    return found


def pinned(
    marks: MarksTopic, job_id: str, arguments: Mapping[str, Any], ranges: Sequence[OffsetRange], progress: Progress
) -> Pinned | None:
    """What a job noted when it was first run; None if it was not. UsageError when it was another job."""
    before = marks.plan(job_id)
    if before is None:
        return None
    if before["arguments"] != dict(arguments):
        raise UsageError(
            f"--job-id {job_id} was given to another job: {_words(before['arguments'])}; this one is "
            f"{_words(arguments)}, and needs an id of its own"
        )
    is_finished = marks.finished(job_id) is not None
    if not is_finished:
        progress.say(f"going on with the job {job_id} that did not end")
    noted = [OffsetRange(*r) for r in before["ranges"]]
    ends = {r.topic_partition: r.end for r in noted}
    left_out = sum(max(0, r.end - max(r.start, ends.get(r.topic_partition, 0))) for r in ranges)
    return Pinned(noted, is_finished, left_out)


def sentence_again(job_id: str, topic: str, left_out: int) -> str:
    """Of a job that was finished before."""
    since = f"; {count_of(left_out, 'offset')} that came since {'is' if left_out == 1 else 'are'} not part of it"
    return f"the job {job_id} was finished before; {topic} is as it was{since if left_out else ''}"


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
