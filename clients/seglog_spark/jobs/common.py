"""Steps common to all jobs, with Spark or without: connect, open a store and a table."""

import os
from pathlib import Path
from typing import Any

from seglog.cli.arguments import Options
from seglog.cli.exits import InputError, UsageError
from seglog.client import Client
from seglog_protocol.extras import missing
from seglog_protocol.object_stores import place_at
from seglog_spark.catalog import PATIENCE_SECONDS, connect
from seglog_spark.servers import server_of
from seglog_spark.tables.manifest import Format
from seglog_spark.tables.stores import Folder, Store
from seglog_spark.tables.targets import ParquetFiles, Target


def open_client(options: Options, patience: float = PATIENCE_SECONDS) -> Client:
    """A client of a broker that has answered once; from then on it waits ``patience`` seconds for the broker."""
    try:
        server = server_of(options)
        with connect(server, options.connect_timeout):
            return connect(server, patience)
    except ValueError as error:
        raise UsageError(str(error)) from error


def store_of(text: str, option: str) -> Store:
    """A folder, or a path of a bucket. UsageError for another URL, InputError where its library is missing."""
    if "://" not in text:
        return Folder(Path(text).absolute())
    try:
        place = place_at(text, os.environ)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if absent := missing(f"{option} {text}", "archive"):
        raise InputError(str(absent))
    from seglog_spark.tables.buckets import Bucket  # noqa: PLC0415 - it may be missing

    return Bucket(place)


def open_target(table_format: Format, catalog: str | None, store: Store, **table: Any) -> Target:
    """The table of a format, with the fields ``table``. InputError without its library, which comes with an extra."""
    if table_format == "parquet":
        return ParquetFiles(store)
    if error := missing(f"--format {table_format}", table_format):
        raise InputError(str(error))
    if "://" not in store.place and not {*"#%?"}.isdisjoint(store.place):
        raise InputError(
            f"tables have addresses, in which #, % and ? mean something: archive elsewhere than {store.place}"
        )
    if table_format == "delta":
        from seglog_spark.tables.delta import Delta  # noqa: PLC0415 - comes with an extra

        return Delta(store, **table)
    from seglog_spark.tables.iceberg import Iceberg  # noqa: PLC0415 - comes with an extra

    return Iceberg(store, catalog_name=catalog, **table)


def check_kept(place: str, option: str, before: object, now: object) -> None:
    """Raise InputError where an archive was begun with another value of an option; None: without it."""
    if before != now:
        how = f"without {option}" if before is None else f"with {option} {before}"
        raise InputError(
            f"the archive in {place} was begun {how}, and stays as it was begun: go on {how}, or name another folder"
        )
