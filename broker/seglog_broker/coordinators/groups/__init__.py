"""Groups of consumers: who is a member, which partitions each has, and what they committed. Without I/O and clock."""
