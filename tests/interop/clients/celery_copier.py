"""A task of Celery for each number in queue ``in``, which sends one to queue ``out``; or fills ``in``.

Arguments: the server, and how many tasks to send; without that, it is a worker.
"""

import sys

from celery import Celery
from kombu import Queue

server, *counts = sys.argv[1:]
app = Celery("copiers", broker=f"confluentkafka://{server}")
app.conf.update(
    task_queues=[Queue("in")],
    task_acks_late=True,
    worker_prefetch_multiplier=1,  # an acknowledgement commits all that was received: so one task at a time
    worker_enable_remote_control=False,  # the transport has no fanout
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "kafka_consumer_config": {"group.id": "copiers", "session.timeout.ms": 6000},
        "kafka_producer_config": {"message.timeout.ms": 0},  # by default it is lost after 5 minutes, without an error
    },
)


@app.task(name="copy")
def copy(number: int) -> None:
    """Send the task whose message in ``out`` is the copy."""
    app.send_task("copied", [number], queue="out")


if __name__ == "__main__":
    if counts:
        for number in range(int(counts[0])):
            app.send_task("copy", [number], queue="in")
    else:
        once = ["--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        app.worker_main(["worker", "--loglevel=INFO", *once])
