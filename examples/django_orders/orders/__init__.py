"""The app: orders that came through the log."""
