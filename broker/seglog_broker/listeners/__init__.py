"""Listeners: they turn bytes of a wire protocol into calls on the broker, and results into bytes. They own sockets."""
