"""The target topic of a job: created if necessary; under a job id, the plan of the job is kept in the marks topic."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from seglog.cli.arguments import Options
from seglog.cli.common import answer
from seglog.cli.exits import UsageError
from seglog.client import Client
from seglog.core.errors import count_of, duration_of
from seglog_protocol.errors import InvalidPartitionsError
from seglog_protocol.messages import TopicDescription
from seglog_spark.jobs.progress import Progress
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import WriteOptions
from seglog_spark.servers import options_of, server_of


def sink_options(options: Options) -> dict[str, str]:
    """The options of ``format("seglog")`` for the target that the command line names."""
    given = options_of(server_of(options)) | {
        "topic": options.to_topic,
        "ack": options.ack,
        "compression": options.compression,
    }
    if options.job_id is not None:
        given |= {"deliveryGuarantee": "effectively-once", "jobId": options.job_id}
    return given


def prepare_topic(client: Client, name: str, partitions: int, preserve: Sequence[str], progress: Progress) -> None:
    """Create the topic if it is absent; if partitions are preserved, check that it has at least so many.

    A new topic keeps its records for ever, because they may be old. Raises InvalidPartitionsError, and UsageError when
    an existing topic would not keep what is to be preserved.
    """
    if name not in {topic.name for topic in client.topics()}:
        client.create_topic(name, partitions=partitions, config={"retention.ms": -1}, exist_ok=True)
        progress.say(f"created topic {name}, partitions={partitions}, retention.ms=-1")
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
            f"{topic.name} gives records its own timestamps (message.timestamp.type=LogAppendTime): leave "
            "timestamp out of --preserve, or name another topic"
        )
    retention_ms = int(values.get("retention.ms", "-1"))
    if retention_ms >= 0 and "delete" in values.get("cleanup.policy", "delete"):
        progress.say(f"{topic.name} deletes records that are {duration_of(retention_ms)} old (retention.ms)")


class Pinned(NamedTuple):
    """The ranges that a job reads, and whether it has written them all.

    ``left_out``: the number of offsets added since its first run, which it does not read.
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
    """The ranges to write, with the topic prepared and the plan noted; neither happens if there is nothing to write.

    Topics grow, and ``-1h`` moves on, so a job that is run again under its id reads the ranges of its first run. Raises
    what ``prepare_topic`` and ``pinned`` raise.
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
    """The ranges of a job's first run; None for a new job id. UsageError when the id belongs to another job."""
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
        progress.say(f"resuming job {job_id}, which did not finish")
    noted = [OffsetRange(*r) for r in before["ranges"]]
    ends = {r.topic_partition: r.end for r in noted}
    left_out = sum(max(0, r.end - max(r.start, ends.get(r.topic_partition, 0))) for r in ranges)
    return Pinned(noted, is_finished, left_out)


def print_written(
    options: Options, topic: str, pinned: Pinned, sentence: str, records: int, progress: Progress, **more: Any
) -> int:
    """Print how a job ended: by ``sentence``, unless it was finished before, or ``topic`` had nothing for it."""
    left_out = pinned.left_out
    if pinned.is_finished:
        since = f"; {count_of(left_out, 'offset')} added since {'is' if left_out == 1 else 'are'} not part of it"
        unchanged = f"{options.to_topic} is unchanged{since if left_out else ''}"
        sentence = f"job {options.job_id} was finished before; {unchanged}"
    elif not any(r.size for r in pinned.ranges):
        sentence = f"{topic} has no records there; nothing was written"
    written = {"topic": topic, "to_topic": options.to_topic, "job_id": options.job_id, "records": records}
    done = {"is_repeated": pinned.is_finished, "left_out": left_out, "seconds": progress.seconds}
    return answer(options, {"job": options.job, **written, **more, **done}, sentence)


def _words(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in arguments.items() if value not in (None, False, []))


@dataclass(slots=True)
class Pace:
    """Limits a writer to ``rate`` records a second."""

    rate: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _due: float | None = None

    def __call__(self, records: int) -> None:
        """Return when so many more records are due."""
        now = self.clock()
        due = now if self._due is None else max(self._due, now)
        if due > now:
            self.sleep(due - now)
        self._due = due + records / self.rate
