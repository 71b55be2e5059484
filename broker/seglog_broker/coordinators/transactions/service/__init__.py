"""Transactional ids, served: written to their topic, loaded, expired; markers are written, partitions are told."""
