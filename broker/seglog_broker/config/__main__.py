"""``python -m seglog_broker.config`` prints the page CONFIG.md."""

import sys

from seglog_broker.config.document import render_document

sys.stdout.buffer.write(render_document().encode())  # UTF-8, whatever the terminal speaks
