"""`manage.py take_orders`: brings orders from the log into the database until it is ended."""

import signal
from types import FrameType

from django.conf import settings
from django.core.management.base import BaseCommand

import seglog
from orders.models import Order


def end(_signal: int, _frame: FrameType | None) -> None:
    """End as by Ctrl-C: the consumer's block commits what is done, and leaves the group."""
    raise SystemExit


class Command(BaseCommand):
    """Several may run: the group shares the partitions among them."""

    help = "Bring orders from the log into the database, until SIGTERM or Ctrl-C."

    def handle(self, *_: object, **__: object) -> None:
        """Take orders; each counts as done when the loop comes back for the next one."""
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        with seglog.connect() as client:
            client.create_topic(settings.SEGLOG_TOPIC, exist_ok=True)
            with client.consumer(settings.SEGLOG_TOPIC, group="take-orders", session_timeout=6) as consumer:
                for record in consumer:
                    # After a kill some records come again, and are there already.
                    text = (record.value or b"").decode(errors="replace")
                    Order.objects.get_or_create(
                        partition=record.partition, offset=record.offset, defaults={"text": text}
                    )
