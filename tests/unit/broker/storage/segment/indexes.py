"""What tests of both kinds of index share."""

from typing import Generic, TypeVar

from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.segment.offset_index import OffsetIndex
from seglog_broker.storage.segment.sparse_index import TAIL_BYTES_MAX, WRITE_BYTES
from seglog_broker.storage.segment.time_index import TimeIndex
from seglog_broker.testing.forgetful import ForgetfulFileSystem

IndexT = TypeVar("IndexT", bound=OffsetIndex | TimeIndex)


class Indexes(Generic[IndexT]):
    """A disk and whatever indexes of a kind are opened on it."""

    def __init__(
        self, kind: type[IndexT], path: str, base: int = 0, *, bytes_max: int = 1 << 20, handles_max: int = 512
    ) -> None:
        self.fs = ForgetfulFileSystem()
        self.fs.load({"/p-0/": b""})
        self.handles = HandlePool(self.fs, handles_max)
        self.kind = kind
        self.path = path
        self.base = base
        self.bytes_max = bytes_max
        self.write_bytes, self.tail_bytes_max = WRITE_BYTES, TAIL_BYTES_MAX

    def new(self) -> IndexT:
        index = self._index(exists=False)
        index.create()
        return index

    def _index(self, *, exists: bool) -> IndexT:
        index = self.kind(self.fs, self.handles, self.path, self.base, bytes_max=self.bytes_max, exists=exists)
        index.write_bytes, index.tail_bytes_max = self.write_bytes, self.tail_bytes_max
        return index

    def reopened(self) -> IndexT:
        self.handles.close()
        return self._index(exists=True)

    @property
    def file(self) -> bytes:
        return self.fs.snapshot()[self.path]
