"""The producer of this process."""

from threading import Lock

from django.conf import settings

import seglog

_lock = Lock()
_made: list[seglog.Producer] = []


def producer() -> seglog.Producer:
    """The producer that all threads of this process share; what is on its way when the process ends is sent then.

    It is made when it is first asked for: a server forks its workers before, and a client does not outlive a fork.
    """
    with _lock:
        if not _made:
            client = seglog.connect()
            client.create_topic(settings.SEGLOG_TOPIC, exist_ok=True)
            _made.append(client.producer(settings.SEGLOG_TOPIC, delivery_timeout=20))
    return _made[0]
