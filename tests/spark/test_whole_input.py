"""The end of a task's rows, as a worker of PySpark sees it: without Spark, and with a task that fails."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from seglog.client import Client
from tests.processes import Daemon
from tests.spark.test_writing import values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINK: Final[Any] = pytest.importorskip("seglog_spark.sink", reason="pyspark: it has environments of its own")

ROWS = pa.record_batch({"value": pa.array([b"a", b"b"])})


def main(infile: Any) -> list[pa.RecordBatch]:
    """As PySpark's worker: rows in Arrow's stream, whose end pyarrow finds, and behind it what Spark has to say."""
    return list(SINK.whole(iter(pa.ipc.open_stream(infile))))


def stream(*, is_whole: bool = True) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_batch(ROWS)
        cut = sink.tell()
    return sink.getvalue() if is_whole else sink.getvalue()[:cut]


def test_rows_are_whole_where_spark_says_so_and_what_it_says_is_left_to_the_worker() -> None:
    infile = io.BufferedReader(io.BytesIO(stream() + b"\xff\xff\xff\xfc"))
    assert main(infile) == [ROWS]
    assert infile.read() == b"\xff\xff\xff\xfc"


@pytest.mark.parametrize("read", [stream(), stream(is_whole=False), stream() + b"\x00\x00\x00\x01"])
def test_rows_that_end_early_are_an_error(read: bytes) -> None:
    with pytest.raises(SINK.CutShortError, match="nothing of the task counts"):
        main(io.BufferedReader(io.BytesIO(read)))


def test_where_nobody_can_say_nothing_is_taken_for_whole() -> None:
    with pytest.raises(SINK.CutShortError, match="does not show"):
        list(SINK.whole(iter([ROWS])))


def test_of_a_task_whose_rows_fail_at_their_end_nothing_is_committed(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    """What the sink got until then looks like all there is."""
    client.create_topic(topic)

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise RuntimeError("stumbled")

    def save(frame: Any) -> None:
        writer = frame.write.format("seglog").options(servers=running.address, topic=topic, jobId="j")
        writer.option("deliveryGuarantee", "exactly-once").mode("append").save()

    frame = spark.range(0, 300, 1, 1).selectExpr("string(id) as value")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        with pytest.raises(Exception, match="stumbled"):
            save(frame.mapInArrow(failing, frame.schema))
        assert values(client, topic, "read_committed") == []
        save(frame)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(client, topic, "read_committed") == list(range(300))
