#!/usr/bin/env bash
# deltalake 1.6.6: a dataset of pyarrow loses the rows of files without statistics of a column that is filtered by.
#
# A writer may leave a column out of a file's statistics; a reader then has to look into the file. `to_pyarrow_dataset`
# gives each file an expression of its bounds, and where one of its table's columns has none, compares with null. What is
# compared with null is never true, so that the file is left out of every filter by that column. Nothing is said.
# `to_pyarrow_table(filters=…)`, and DuckDB over the dataset, go the same way; delta-rs's own queries read the file.
#
# Seen with deltalake 1.6.6, pyarrow 26.0.1 and CPython 3.11.7 on Linux x86-64:
#     rows: 3
#     rows where name = 'a', by delta-rs: 3
#     rows where name = 'a', by the dataset: 0
# Exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
cat > look.py <<'PYTHON'
import json
import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.transaction import AddAction

rows = pa.table({"number": pa.array([1, 2, 3], pa.int64()), "name": ["a", "a", "a"]})
table = DeltaTable.create("table", rows.schema)
pq.write_table(rows, "table/rows.parquet")
statistics = {"numRecords": 3, "minValues": {"number": 1}, "maxValues": {"number": 3}, "nullCount": {"number": 0}}
added = AddAction("rows.parquet", os.path.getsize("table/rows.parquet"), {}, 0, True, json.dumps(statistics))
table.create_write_transaction([added], "append", rows.schema)
table = DeltaTable("table")
found = QueryBuilder().register("t", table).execute("select * from t where name = 'a'").read_all()
print("rows:", table.to_pyarrow_table().num_rows)
print("rows where name = 'a', by delta-rs:", pa.table(found).num_rows)
print("rows where name = 'a', by the dataset:", table.to_pyarrow_dataset().to_table(filter=pc.field("name") == "a").num_rows)
PYTHON
env/bin/python look.py | tee seen
diff seen - <<'SEEN'
rows: 3
rows where name = 'a', by delta-rs: 3
rows where name = 'a', by the dataset: 0
SEEN
