"""Archives in a real object store: written, continued, read back, and taken from a run that was killed."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from seglog import connect
from seglog_spark.tables.buckets import Bucket
from seglog_spark.tables.claims import CLAIM
from seglog_spark.tables.manifest import load
from tests.interop.object_stores import ACCESS_KEY, SECRET_KEY, gateway, old_store
from tests.processes import Daemon, clean_environment, daemon, seglog_command

pytestmark = [pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment of whoever writes to a store."""
    folder = tmp_path_factory.mktemp("store")
    honours = request.param == "honours-conditions"
    with ExitStack() as stack:
        port = stack.enter_context(gateway(folder)).port if honours else stack.enter_context(old_store(folder))
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported" if honours else "when_required",
        }


@pytest.fixture
def bucket(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bucket:
    """A path of the test's own."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Bucket(f"s3://backups/{request.node.callspec.id}")


def _rows(bucket: Bucket, table_format: str, catalog: str) -> pa.Table:
    if table_format == "delta":
        return DeltaTable(bucket.place, storage_options={"allow_http": "true"}).to_pyarrow_table()
    if table_format == "iceberg":
        endpoint = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]}
        return SqlCatalog("seglog", uri=catalog, **endpoint).load_table(("seglog", "t")).scan().to_arrow()
    found = load(bucket)
    assert found is not None
    return pa.concat_tables(
        pq.ParquetFile(bucket.open(file.path)).read(["partition", "offset"]) for file in found.files
    )


def _archive(running: Daemon, bucket: Bucket, *more: str) -> "subprocess.Popen[str]":
    command = seglog_command(running.address, "archive", "--topic", "t", "--out", bucket.place, *more)
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, "--json"], stdout=pipe, stderr=pipe, text=True, env=clean_environment())


def _summary(process: "subprocess.Popen[str]") -> dict[str, int]:
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    found: dict[str, int] = json.loads(out)
    return found


@pytest.mark.parametrize(
    ("variables", "table_format"),
    [("honours-conditions", "parquet"), *(("ignores-conditions", name) for name in ("parquet", "delta", "iceberg"))],
    indirect=["variables"],
)
def test_an_archive_in_a_bucket_goes_on_after_a_kill_and_has_one_owner(
    bucket: Bucket, table_format: str, tmp_path: Path
) -> None:
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    named = ("--catalog", catalog) if table_format == "iceberg" else ()
    layout = ("--partition-by", "month", "--format", table_format, *named)
    with daemon(tmp_path / "data") as running, connect(running.address) as client:
        client.create_topic("t", partitions=2, config={"retention.ms": -1})

        def produce(count: int) -> None:
            with client.producer("t") as producer:
                for number in range(count):
                    producer.send(b"x" * 100, partition=number % 2, timestamp=number * 1_000_000_000)

        produce(10)
        assert _summary(_archive(running, bucket, *layout))["records"] == 10
        produce(6)
        follower = _archive(running, bucket, "--follow", "--trigger", "0.2", *layout)
        while (made := load(bucket)) is None or sum(file.records for file in made.files) < 16:
            assert follower.poll() is None, follower.communicate()[1]
        _, said = _archive(running, bucket, *layout).communicate()
        assert f"(process {follower.pid} on " in said
        assert f"is writing to {bucket.place}; wait until it has ended" in said
        follower.send_signal(signal.SIGKILL)
        follower.communicate()
        produce(4)
        assert CLAIM in set(bucket.names())  # of one that was killed: the next run waits until it is dead
        assert _summary(_archive(running, bucket, *layout))["records"] == 4
        assert CLAIM not in set(bucket.names())
    rows = _rows(bucket, table_format, catalog).select(["partition", "offset"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        (partition, offset) for partition in (0, 1) for offset in range(10)
    ]
