"""Topics of seglog in Spark, by PySpark's Python data source API: nothing but ``pip install 'seglog[spark]'``.

    spark = seglog_spark.session()
    events = spark.read.format("seglog").option("servers", "localhost:9192").option("subscribe", "commits").load()

``format("seglog")`` needs no registration. Planning (``options``, ``planning``, ``plans``) and the work of tasks
(``reading``, ``writing``) do not depend on Spark.
"""

from seglog_spark.java import JavaMissingError
from seglog_spark.options import OptionError
from seglog_spark.planning import DataLossError
from seglog_spark.session import session

__all__ = ["DataLossError", "JavaMissingError", "OptionError", "session"]
