"""What every listener stands on: accepting, serving sockets that are ready, sending, and closing in order."""
