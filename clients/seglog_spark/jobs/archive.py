"""``seglog spark archive``: as ``seglog archive``, with tasks of Spark, here or on a cluster."""

import sys

from seglog.cli import main
from seglog.cli.arguments import Options
from seglog_spark.jobs import archiving
from seglog_spark.jobs.running import Runner


def run(options: Options) -> int:
    """Run the job; with ``--follow`` until it is interrupted."""
    return archiving.run(options, Runner)


if __name__ == "__main__":
    sys.exit(main(["spark", "archive", *sys.argv[1:]]))
