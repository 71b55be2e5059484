"""The native listener: the protocol of docs/PROTOCOL.md."""
