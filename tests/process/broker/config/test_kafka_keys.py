"""The table of Kafka's keys is read by nobody who does not ask."""

import subprocess
import sys


def test_a_start_of_the_daemon_does_not_read_the_table() -> None:
    program = (
        "import seglog_broker.server, seglog_broker.__main__\n"
        "from seglog_broker.config import kafka_configs\n"
        "print(kafka_configs._table.cache_info().currsize)\n"
        "kafka_configs.kafka_keys('topic')\n"
        "print(kafka_configs._table.cache_info().currsize)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["0", "1"]
