"""Listeners: bytes of a wire protocol in, calls on the broker, bytes out. They own sockets and no state of a log."""
