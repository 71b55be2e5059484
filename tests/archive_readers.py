"""Archives of each format as its own library reads them, which knows nothing of archives."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from seglog_spark.tables.iceberg import CATALOG_FILE, NAMESPACE


def _parquet(folder: Path, columns: list[str] | None) -> pa.Table:
    return ds.dataset(folder, format="parquet").to_table(columns=columns)


def _delta(folder: Path, columns: list[str] | None) -> pa.Table:
    return DeltaTable(folder).to_pyarrow_table(columns=columns)


def _iceberg(folder: Path, columns: list[str] | None) -> pa.Table:
    """Of the only table in the catalog beside it."""
    catalog = SqlCatalog("seglog", uri=f"sqlite:///{folder}/{CATALOG_FILE}")
    try:
        (name,) = catalog.list_tables(NAMESPACE)
        return catalog.load_table(name).scan(selected_fields=tuple(columns or "*")).to_arrow()
    finally:
        catalog.close()


READERS: Final[dict[str, Callable[[Path, list[str] | None], pa.Table]]] = {
    "parquet": _parquet,
    "delta": _delta,
    "iceberg": _iceberg,
}
"""Format -> what reads some columns, or all, of all rows."""
