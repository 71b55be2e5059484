"""``seglog load``: load on purpose, and how the broker bears it."""

import sys
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING

from seglog.cli import INTERRUPTED
from seglog.cli.arguments import Options
from seglog.cli.common import moment_of, print_json, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.tables import print_table
from seglog.load.plan import Plan, make_plan
from seglog_protocol.extras import missing

if TYPE_CHECKING:
    from seglog.load.report import Report
    from seglog.trio.client import Client

_CLEAR_LINE = "\r\x1b[K"
_REQUEST_SECONDS = 60.0  # longer than a fetch waits for records


def run(options: Options) -> int:
    """Run one verb and print its report. 1 when anything failed, 130 when interrupted, with what was measured."""
    if (error := missing("seglog load", "load")) is not None:
        warn(str(error))
        return FAILED
    import trio  # noqa: PLC0415 - only now is it known to be there

    running = import_module("seglog.load.running")
    try:
        plan = _plan(options)
        _client(options)  # a wrong address is an error before anything is begun
    except ValueError as error:
        raise UsageError(str(error)) from error
    is_shown = sys.stderr.isatty() and not options.json

    async def carry_out() -> "Report":
        report: Report = await running.run(plan, lambda: _client(options), on_progress=_show if is_shown else None)
        return report

    try:
        report = trio.run(carry_out)
    finally:
        if is_shown:
            _show("")
    if options.json:
        print_json(report.to_json())
    else:
        _print(report)
    if report.ended_by == "interrupt":
        return INTERRUPTED
    return FAILED if report.has_failed else OK


def _plan(options: Options) -> Plan:
    names = {field.name for field in fields(Plan)}
    values = {name: value for name, value in options.values.items() if name in names}
    verb = values.pop("verb")
    if values.get("start") is not None:
        values["start"] = moment_of(values["start"], options)
    if verb == "consume" and values["count"] is not None:
        values["fill"] = values["count"]
    return make_plan(verb, **values)


def _client(options: Options) -> "Client":
    from seglog.trio.client import connect  # noqa: PLC0415 - as trio

    return connect(
        options.server,
        connect_timeout=options.connect_timeout,
        request_timeout=_REQUEST_SECONDS,
        client_id="seglog-load",
    )


def _show(line: str) -> None:
    """In a terminal: this line in place of the last one."""
    sys.stderr.write(f"{_CLEAR_LINE}{line}")
    sys.stderr.flush()


def _print(report: "Report") -> None:
    print(report.heading(), end="\n\n")
    for titles, rows in (report.totals(), report.latency_rows()):
        if rows:
            print_table(titles, rows)
            print()
    for remark in report.remarks():
        print(remark)
