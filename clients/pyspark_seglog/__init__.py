"""Entry point for ``spark.read.format("seglog")`` without a registration.

Spark imports every top-level package whose name begins with ``pyspark_`` when it first looks for a format, and takes
its ``DefaultSource``.
"""

from seglog_spark.source import SeglogDataSource as DefaultSource

__all__ = ["DefaultSource"]
