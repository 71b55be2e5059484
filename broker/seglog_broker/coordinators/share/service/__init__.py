"""The state of records of share groups, served: in a runtime, on its topic, which is pruned."""
