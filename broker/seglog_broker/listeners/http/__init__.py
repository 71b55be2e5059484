"""Health and metrics over HTTP/1.1: a wire of the connection, parsed and written by h11."""
