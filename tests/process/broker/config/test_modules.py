"""The modules of the configuration: what loading it imports."""

import subprocess
import sys


def test_loading_the_configuration_imports_no_loop_and_no_codecs() -> None:
    program = (
        "import sys; from seglog_broker.config import load_config; load_config(None, '', {}, ['log.dir=x'])\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loops_and_codecs = {
        "trio",
        "structlog",
        "msgpack",
        "msgspec",
        "tomllib",
        "difflib",
        "socket",
        "seglog_protocol.zstd_library",
    }
    assert not loops_and_codecs & set(done.stdout.split())
