"""Test doubles for programs that stand on the storage engine: a disk that forgets what was not synced."""
