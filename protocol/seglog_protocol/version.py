"""The version of the installed package, by the name of the folder that its installation has left, editable or not."""

import os
import sys


def _find() -> str:
    for folder in sys.path:
        try:
            names = os.listdir(folder or os.curdir)  # noqa: PTH208 - pathlib takes as long to import as Python to start
        except OSError:
            continue
        for name in names:
            if name.startswith("seglog-") and name.endswith(".dist-info"):
                return name[len("seglog-") : -len(".dist-info")]
    return "0+unknown"  # run from a source tree that was never installed, or from a zip file


VERSION = _find()  # nothing of `typing`, which takes half as long to import as Python to start
__version__ = VERSION
