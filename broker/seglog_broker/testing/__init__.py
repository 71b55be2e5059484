"""The test kit, for programs that stand on the storage engine or on a broker: see docs/TESTING.md."""
