"""A partition in service: its log, the fetches that wait for records, the acks that wait for the disk."""
