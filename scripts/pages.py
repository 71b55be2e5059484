"""Writes the pages that are made of the code, as texts: configuration, metrics, events, messages.

    python -m scripts.pages [FOLDER]

into build/pages if no folder is named. The site of `make docs` has them, too. docs/ has the beginning of each, or says
how to read it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scripts import event_tables, message_tables
from seglog_broker.api.monitoring import __main__ as metrics
from seglog_broker.config.__main__ import render_document

WRITTEN: Final[dict[str, Callable[[], str]]] = {
    "CONFIG.md": render_document,
    "EVENTS.md": event_tables.page,
    "MESSAGES.md": message_tables.page,
    "METRICS.md": metrics.page,
}
"""The page by the name of its file in docs/."""


def main(folder: Path) -> None:
    """Write all of them into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in WRITTEN.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/pages"))
