"""Zstandard, from the standard library where that has it (Python 3.14), else its backport, which is the same code.

Half a megabyte installed; the package `zstandard` takes 24.
"""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
