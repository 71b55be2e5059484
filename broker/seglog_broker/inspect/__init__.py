"""Reading a log directory offline: `seglogd dump` and `seglogd check`."""
