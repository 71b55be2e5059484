"""Warnings of the check, the start and a reload."""

import signal
from pathlib import Path

from tests.processes import seglogd, watched


def test_the_check_the_start_and_a_reload_warn(tmp_path: Path) -> None:
    data, file, password = tmp_path / "data", tmp_path / "seglogd.toml", tmp_path / "password"
    password.write_text("of alice")
    file.write_text('"super.users" = "User:admin"\n')
    flags = ["--config", str(file), "--listen", "SASL_PLAINTEXT://127.0.0.1:0"]
    data.mkdir()
    seglogd("user", "add", "alice", "--data", str(data), "--password-file", str(password))
    (data / "seglog-accounts.json").chmod(0o644)
    checked = seglogd("--data", str(data), "--check-config", *flags)
    assert checked.returncode == 0
    assert "warning: super.users has User:admin, and there is no account admin" in checked.stderr
    assert "(mode 0644)" in checked.stderr
    with watched(data, *flags) as (process, lines, logged):
        reasons = [entry["reason"] for entry in logged if entry["event"] == "config_warning"]
        assert any("there is no account admin" in reason for reason in reasons)
        assert any("(mode 0644)" in reason for reason in reasons)
        file.write_text('"super.users" = "User:alice;User:bob"\n')
        process.send_signal(signal.SIGHUP)
        after = str(lines.until("configuration_reloaded"))
    assert "there is no account bob" in after
    assert "no account alice" not in after
