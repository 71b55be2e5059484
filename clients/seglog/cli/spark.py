"""``seglog spark archive | replay | compact | report``."""

from importlib import import_module

from seglog.cli.arguments import Options
from seglog_spark.jobs.failures import as_command_errors
from seglog_spark.jobs.running import require_packages


def run(options: Options) -> int:
    """Run a job, whose module needs packages that may be missing."""
    with as_command_errors():
        require_packages()
        code: int = import_module(f"seglog_spark.jobs.{options.job}").run(options)
    return code
