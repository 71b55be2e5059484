"""The requests that the broker answers, whatever the wire protocol."""
