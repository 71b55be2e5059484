"""Print docs/CONFIG.md: ``python -m seglog_broker.config > docs/CONFIG.md``."""

import sys

from seglog_broker.config.document import render_document

sys.stdout.buffer.write(render_document().encode())  # UTF-8, whatever the terminal speaks
