"""Backups of a log directory, taken while a broker runs on it or not, and where they are kept."""
