"""docs/DURABILITY.md: every file has a row for its bits."""

import re

from seglog_broker.storage.io.filenames import (
    ACCOUNTS_FILE,
    ACLS_FILE,
    CLEAN_PARTITIONS_FILE,
    CREATION_FILE,
    DYNAMIC_CONFIGS_FILE,
    RESTORE_FILE,
)
from seglog_protocol.checkpoint_files import CLEANER_CHECKPOINT
from seglog_protocol.segment_files import AWAITED_SUFFIX, TXN_INDEX_SUFFIX
from tests.support import REPOSITORY
from tests.unit.simulation.test_every_bit import _written

_PAGE = (REPOSITORY / "docs" / "DURABILITY.md").read_text(encoding="utf-8")
_STORAGE = (REPOSITORY / "docs" / "STORAGE.md").read_text(encoding="utf-8")
_WITHOUT_CONTENT = {
    ".lock", ".tmp", ".deleted", ".cleaned", ".swap", ".log.damaged-<position>", "seglog-ballast", "seglog-backup.sock",
    "seglog-standby.sock", "seglog-fencing",
}  # fmt: skip
"""Empty, a socket, or the same bytes under a name that says that they do not count."""


def _files_with_a_row() -> set[str]:
    """Files that "A bit flips" has a row for, segments' by their suffix."""
    section = _PAGE.split("\n## A bit flips\n")[1].split("\n## ")[0]
    rows = section.split("\n| what the bit is in |")[1].split("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


def test_every_file_that_lies_on_the_disk_has_a_row_for_its_bits() -> None:
    listed = [span for row in re.findall(r"^\| (`.+?) \|", _STORAGE, re.MULTILINE) for span in row.split(", ")]
    names = {re.sub(r"^(<stem>|<offset>|\*)", "", span.strip("`")) for span in listed if "." in span or "-" in span}
    files = {name for name in names if re.fullmatch(r"\.?[a-z._<>-]+", name)}
    assert len(files) > 20
    assert files - _WITHOUT_CONTENT <= _files_with_a_row()


async def test_the_table_has_exactly_the_files_of_every_bit() -> None:
    """Every file with a row is in the run that flips every bit, and no other."""
    # each with its own run
    rarer = {
        CLEANER_CHECKPOINT, CLEAN_PARTITIONS_FILE, CREATION_FILE, DYNAMIC_CONFIGS_FILE, ACCOUNTS_FILE, ACLS_FILE,
        TXN_INDEX_SUFFIX, RESTORE_FILE, AWAITED_SUFFIX,
    }  # fmt: skip
    written = [await _written(clean=clean) for clean in (True, False)]
    turned = {path.rpartition("/")[2] for each in written for path, content in each.files.items() if content}
    assert {re.sub(r"^\d+", "", name) for name in turned} | rarer == _files_with_a_row()
