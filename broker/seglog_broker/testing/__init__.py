"""The test kit, for programs that use the storage engine or a broker: see docs/TESTING.md."""
