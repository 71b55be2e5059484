"""``python -m seglog``: the same as ``seglog``, where that is not in the PATH."""

import sys

from seglog.cli import main

sys.exit(main())
