"""A description of a daemon."""

import os
from pathlib import Path

import seglog
from seglog_protocol.messages import DescribedListener
from seglog_protocol.version import VERSION
from tests.processes import daemon


def test_a_daemon_tells_its_configuration_its_sockets_and_what_it_runs_on(tmp_path: Path) -> None:
    listeners = "listeners=PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0"
    protocols = "listener.security.protocol.map=OTHER:PLAINTEXT"
    advertised = "advertised.listeners=OTHER://logs.example:9092"
    flags = [part for flag in (listeners, protocols, advertised) for part in ("--set", flag)]
    with daemon(tmp_path / "data", *flags) as running, seglog.connect(running.address) as client:
        reply = client.describe_broker()
        process = running.process
        assert process is not None
        assert (reply.process, reply.user) == (process.pid, os.geteuid())
        assert reply.config["log.dir"].value == str(tmp_path / "data")
        assert reply.config["log.dir"].origin == "flag"
        assert reply.config["log.retention.ms"].origin == "default"
        first, second, third = reply.listeners
        assert first == DescribedListener("", "PLAINTEXT", running.address)
        assert second == DescribedListener("PLAINTEXT", "PLAINTEXT", f"127.0.0.1:{running.kafka_port}")
        assert (third.name, third.advertised) == ("OTHER", "logs.example:9092")
        assert reply.versions["seglogd"] == VERSION
        assert reply.limits["connections"] == int(reply.config["seglog.connections.max"].value)
        assert reply.limits["open_files"] > 0
