"""``python -m seglog_broker.api.monitoring`` prints the page METRICS.md."""

import sys

from seglog_broker.api.monitoring.document import page

if __name__ == "__main__":
    sys.stdout.write(page())
