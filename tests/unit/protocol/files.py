"""A file in memory that notes what is read of it."""


class ReadFile:
    """``reads`` are (size, position) as asked for, ``read`` is the number of bytes found."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read = 0
        self.reads: list[tuple[int, int]] = []

    def pread(self, size: int, position: int) -> bytes:
        self.reads.append((size, position))
        found = self.data[position : position + size]
        self.read += len(found)
        return found
