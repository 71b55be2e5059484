"""Share groups: the records of partitions that their members take, and the settings of a group."""
