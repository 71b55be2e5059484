"""A driver that is there to be killed: examples/spark_windows.py, for the broker that SEGLOG_SERVER names."""

import sys
from pathlib import Path

import seglog_spark
from examples import spark_windows
from tests.spark.drivers import SHORT_LIVED

if __name__ == "__main__":
    spark = seglog_spark.session(master="local[2]", conf=SHORT_LIVED)
    spark_windows.TOPIC = sys.argv[1]
    spark_windows.main(Path(sys.argv[2]))
    spark.stop()
