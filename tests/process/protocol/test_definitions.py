"""The table of Kafka's messages in a wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.kafka_definitions import KAFKA_VERSION, PACKAGE, main, read_jars, render_table
from tests.installed import build_wheel
from tests.interop.peer import kafka_script


@pytest.mark.soak
def test_the_wheel_has_the_table_with_its_notice_and_works_unpacked_or_not(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    for name in ("definitions.txt", "messages.pyi", "messages.py"):
        assert f"seglog_protocol/kafka/{name}" in names
    assert any(name.endswith(".dist-info/licenses/NOTICE") for name in names)
    program = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
from seglog_protocol.kafka import codec, messages, write_message
print(codec.__file__)
print(write_message(messages.HeartbeatRequest(group_id="g"), 0))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    place, written = done.stdout.splitlines()
    assert place.startswith(str(wheel))
    assert written == repr(bytes.fromhex("0001 67 00000000 0000"))


@pytest.mark.soak
def test_the_table_is_what_kafkas_jars_say(tmp_path: Path) -> None:
    kafka_script()  # has them downloaded, or skips
    cache = Path(os.environ.get("SEGLOG_PEERS_CACHE") or Path.home() / ".cache" / "seglog-peers")
    jars = sorted((cache / "kafka" / KAFKA_VERSION).glob(f"kafka-*-{KAFKA_VERSION}.jar"))
    assert render_table(read_jars(jars)) == (PACKAGE / "definitions.txt").read_text()
    assert main([*map(str, jars), "--into", str(tmp_path)]) == 0
