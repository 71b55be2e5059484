"""A table to a topic, and a topic as a table; needs pyarrow.

    pip install '.[arrow]'
    python examples/arrow_tables.py

The broker and the account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile.
"""

import pyarrow as pa
import pyarrow.compute as pc

import seglog

TOPIC = "readings"


def main() -> None:
    """Write 100,000 rows, read them back, and count them by key."""
    numbers = range(100_000)
    rows = pa.table({"key": [f"sensor-{number % 10}" for number in numbers], "value": [str(n) for n in numbers]})
    with seglog.connect() as client:
        client.create_topic(TOPIC, partitions=3, exist_ok=True)
        written = seglog.write_arrow(client, TOPIC, rows, compression="zstd")
        print(f"{written.records:,} rows written")

        # A range by time, and the columns that are needed. `read_all` holds them all in memory; iterating does not.
        table = seglog.read_arrow(client, TOPIC, since="-1h", columns=["key", "value"]).read_all()
    table = table.set_column(1, "number", pc.cast(pc.cast(table["value"], pa.string()), pa.int64()))
    for row in table.group_by("key").aggregate([("number", "count"), ("number", "max")]).sort_by("key").to_pylist():
        print(row["key"].decode(), row["number_count"], row["number_max"])


if __name__ == "__main__":
    main()
