"""The broker: a storage engine without a loop, listeners without a disk, and one nursery between them."""
