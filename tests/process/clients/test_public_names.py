"""What ``import seglog`` promises."""

import sys
from importlib import metadata

import pytest

import seglog
from tests.processes import finished


def test_every_public_name_is_there() -> None:
    assert sorted(seglog.__all__) == dir(seglog)
    for name in seglog.__all__:
        assert getattr(seglog, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        seglog.nothing  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    assert seglog.__version__ == metadata.version("seglog")


def test_without_pyarrow_a_sentence_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; import seglog; seglog.read_arrow"
    done = finished([sys.executable, "-c", program])
    assert done.returncode == 1
    assert "ModuleNotFoundError: seglog.arrow needs the package pyarrow" in done.stderr
    assert done.stderr.rstrip().endswith("pip install 'seglog[arrow]'")
