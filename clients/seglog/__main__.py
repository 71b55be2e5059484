"""``python -m seglog``: the ``seglog`` command where it is not in the PATH."""

import sys

from seglog.cli import main

sys.exit(main())
