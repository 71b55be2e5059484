"""``seglog backup status``: how far the continuous backup of a broker is, and what would be lost without its disk."""

from typing import TYPE_CHECKING, Final

from seglog.cli.arguments import Options
from seglog.cli.commands import Group
from seglog.cli.common import print_json
from seglog.cli.exits import FAILED, OK
from seglog.cli.figures import bytes_text, loss_of
from seglog.cli.parameters import client_command
from seglog.cli.terminal import print_line
from seglog.core.moments import format_time
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.client import Client


def _status(client: "Client", options: Options) -> int:
    """Show the state; 1 where the backup is held up, is further behind than was asked for, or there is none."""
    status = client.ping().backup
    if options.json:
        print_json(None if status is None else status.to_wire())
    elif status is None:
        print_line("there is no continuous backup (seglog.backup.to is empty), or it is not for this account to see")
    else:
        print_line(f"backup to {printable(status.place)}")
        print_line(loss_of(status))
        if status.published_ms is None or status.published_id is None:
            print_line("published: nothing since the broker started")
        else:
            print_line(f"published: {status.published_id}, the state of {format_time(status.published_ms)}")
        written, appended = bytes_text(status.written_bytes), bytes_text(status.appended_bytes)
        print_line(f"sent to the place since the broker started: {written}, for {appended} appended")
        if status.reason is not None:
            print_line(f"held up: {printable(status.reason)}", fg="red")
    is_well = status is not None and status.reason is None and status.lost_ms <= status.lag_ms
    return OK if is_well else FAILED


COMMAND: Final = Group(
    "backup",
    [
        client_command(
            "status",
            _status,
            "Show what would be lost if the broker's disk died now, and what holds the backup up.\n\n"
            "It exits with 1 where that is more than seglog.backup.lag.ms allows, or there is no backup.",
        ),
    ],
)
