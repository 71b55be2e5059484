"""Reading a log directory offline: `seglogd dump` and `seglogd check`, over the one walk in ``log_walk``."""
