"""Copies topic ``in`` to ``out`` with Pathway. Arguments: the server, and the folder of its snapshots."""

import sys

import pathway as pw

server, folder = sys.argv[1:]
settings = {
    "bootstrap.servers": server,
    "group.id": "pathway",
    "session.timeout.ms": "6000",
    "auto.offset.reset": "earliest",
}
records = pw.io.kafka.read(
    settings,
    "in",
    format="raw",
    autogenerate_key=True,  # else the key of a record is that of a row, and a later one takes its place
    autocommit_duration_ms=100,
    max_backlog_size=100,
    name="records of in",
)
copies = records.select(pw.this.key, value=pw.this.data)
pw.io.kafka.write(copies, settings, "out", format="raw", key=copies.key, value=copies.value)

if __name__ == "__main__":
    snapshots = pw.persistence.Config(pw.persistence.Backend.filesystem(folder), snapshot_interval_ms=200)
    pw.run(persistence_config=snapshots, monitoring_level=pw.MonitoringLevel.NONE)
