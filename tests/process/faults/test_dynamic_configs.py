"""Settings that clients made at run time, beside a configuration that they contradict."""

from pathlib import Path

from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from tests.processes import seglogd


def test_a_file_that_contradicts_the_settings_is_refused_at_a_start(tmp_path: Path) -> None:
    kept = tmp_path / "seglog-configs.json"
    before = encode_dynamic_configs(DynamicConfig({"1": {"log.cleaner.min.compaction.lag.ms": "5000"}}))
    kept.write_bytes(before)
    for more in ((), ("--check-config",)):
        done = seglogd(
            "--listen", "127.0.0.1:0", "--data", tmp_path, "--set", "log.cleaner.max.compaction.lag.ms=4000", *more
        )
        assert done.returncode == (2 if more else 1)
        assert "contradict each other" in done.stderr
        assert "seglog-configs.json" in done.stderr
    assert kept.read_bytes() == before
