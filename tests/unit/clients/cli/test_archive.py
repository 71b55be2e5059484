"""``seglog archive``: a topic as a table without Spark."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import duckdb
import pytest

from seglog import connect
from seglog.cli import INTERRUPTED, main
from seglog.cli.exits import InputError
from seglog.testing import Broker
from seglog_protocol.errors import NotReachableError
from seglog_spark.jobs import archiving
from seglog_spark.tables.manifest import load_whole
from seglog_spark.tables.stores import Folder
from tests.archive_readers import READERS

HOUR_MS = 3_600_000


def test_a_format_is_kept_and_is_what_its_readers_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A format is kept, a catalog is for Iceberg alone, and what reads archives of Parquet does not take a table."""
    out = tmp_path / "archive"
    with Broker() as broker, connect(broker.address) as client:
        client.create_topic("t")
        assert archived(broker, out, "--format", "delta") == 0
        for place, options, sentence in (
            (out, ("--format", "delta", "--catalog", "x"), "--catalog names a catalog of Iceberg tables: add --format"),
            (tmp_path / "50%", ("--format", "delta"), "tables have addresses, in which #, % and ? mean something"),
            (out, (), "was begun with --format delta, and stays as it was begun"),
        ):
            assert archived(broker, place, *options) != 0
            assert sentence in capsys.readouterr().err
    with pytest.raises(InputError, match="is a table of Delta, which knows its files itself"):
        load_whole(Folder(out))


def archived(broker: Broker, out: Path, *more: str, topic: str = "t") -> int:
    return main(["--server", broker.address, "archive", "--topic", topic, "--out", str(out), *more])


def test_values_are_typed_by_a_schema_that_is_inferred_shown_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)  # as without the extra
    out, text = tmp_path / "typed", tmp_path / "text"
    with Broker() as broker, connect(broker.address) as client:
        client.create_topic("t", partitions=2)
        client.create_topic("u")
        with client.producer("t") as producer:
            for number in range(40):
                producer.send(b'{"id": %d, "tags": ["a"]}' % number, partition=number % 2)
            producer.send(None, partition=0)
        assert archived(broker, out, "--value", "json", "--schema", "infer") == 0
        assert "values are json: id bigint, tags array<string>" in capsys.readouterr().err
        with client.producer("t") as producer:
            producer.send(b'{"id": "x"}', partition=1)
        assert archived(broker, out, "--value", "json", "--json") == 1  # nothing fits
        said = capsys.readouterr()
        assert json.loads(said.out)["rejected"] == 1
        assert "1 record rejected (1 in partition 1), 1 of them because the value is JSON of another shape" in said.err
        assert f"; all are in {out}/_rejected" in said.err
        assert archived(broker, out, topic="u") != 0
        assert "holds the archive of t; an archive of u needs a folder of its own" in capsys.readouterr().err
        for options, sentence in (
            ((), "was begun with --value json, and stays as it was begun"),
            (("--value", "json", "--schema", "id bigint"), "and the schema of values has others now (tags): name"),
            (("--value", "string", "--schema", "id int"), "values that are string have no schema"),
            (("--schema", "id int"), "values that are bytes have no schema: say what they are"),
            (("--value", "json", "--schema", "none.ddl"), "seglog: none.ddl: No such file or directory"),
            (("--value", "avro", "--schema", "x"), "decoding avro needs the package fastavro, which is missing: pip"),
        ):
            assert archived(broker, out, *options) != 0
            assert sentence in capsys.readouterr().err
        assert archived(broker, text, "--value", "json") == 0
    query = f"select count(value), sum(value.id), any_value(value.tags) from '{out}/**/*.parquet'"
    assert duckdb.execute(query).fetchall() == [(40, 780, ["a"])]
    query = f"select count(value), sum((value->>'id')::int) from '{text}/**/*.parquet' where value->>'id' != 'x'"
    assert duckdb.execute(query).fetchall() == [(40, 780)]
    query = f"select partition, \"offset\", value, reason from read_parquet('{out}/_rejected/**/*.rejected')"
    reason = "JSON of another shape (Expected `int | null`, got `str` - at `$.id`)"
    assert duckdb.execute(query).fetchall() == [(1, 20, b'{"id": "x"}', reason)]


def test_a_run_that_follows_waits_for_its_broker_and_goes_on_where_a_round_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounds(one_round: Callable[[], object], *_: object) -> None:
        for name, error in (("open_client", NotReachableError("nobody")), ("save", OSError("full"))):
            with monkeypatch.context() as patch:
                patch.setattr(archiving, name, Mock(side_effect=error))
                with pytest.raises(type(error)):
                    one_round()
        one_round()
        with monkeypatch.context() as patch:
            patch.setattr(archiving, "load", None)  # what it holds is known
            one_round()

    monkeypatch.setattr(archiving, "follow", rounds)
    with Broker() as broker, connect(broker.address) as client:
        client.create_topic("t")
        with client.producer("t") as producer:
            producer.send(b"x")
        assert archived(broker, tmp_path / "out", "--follow") == INTERRUPTED
    assert READERS["parquet"](tmp_path / "out", ["offset"]).num_rows == 1


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_tables_have_columns_of_types_too(tmp_path: Path, table_format: str) -> None:
    out = tmp_path / "table"
    with Broker() as broker, connect(broker.address) as client:
        client.create_topic("t")
        options = ("--value", "json", "--schema", "by struct<id: bigint>", "--format", table_format)
        for value in (b'{"by": {"id": 5}}', b"{"):
            with client.producer("t") as producer:
                producer.send(value, timestamp=HOUR_MS)
            assert archived(broker, out, *options, "--partition-by", "day") == (value == b"{")
        files = sorted(Folder(out).names())
        options = ("--value", "json", "--schema", "by struct<id: bigint>, more int", *options[4:])
        assert archived(broker, out, *options, "--partition-by", "day") != 0
        assert sorted(Folder(out).names()) == files
    rows = READERS[table_format](out, ["value"])
    assert rows.column("value").to_pylist() == [{"by": {"id": 5}}]
    assert list(Folder(out).names("_rejected")) == [f"_rejected/t-0/{1:020d}-{2:020d}.rejected"]
