"""Kafka's frames: a length of four bytes, then a header and a request or response.

They are an i32, with the bytes after it; an api key and a version, i16 each; a correlation id, i32; and the rest.
"""

import struct
from typing import Final

from seglog_protocol.errors import FrameTooLargeError, RemoteProtocolError
from seglog_protocol.frame_receiver import FRAME_BYTES_MAX, LENGTH_SIZE, BufferPool, FrameReceiver, ReceiveBuffer

SMALL_FRAME_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of any request but Produce. 100 MiB of strings with two bytes each would be 50 million objects."""

PRODUCE: Final = 0
"""The api key of the only requests that carry records."""

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AND_API_KEY: Final = struct.Struct(">ih")

REQUEST_BYTES_MIN: Final = 8
"""An api key, a version and a correlation id, without which no request can be answered."""

RESPONSE_BYTES_MIN: Final = 4
"""A correlation id, for a reader of responses."""


class KafkaFrameReader(FrameReceiver):
    """Bytes in, requests out, as ``FrameReceiver`` says: each a view of what follows its length.

    Any bytes give frames or RemoteProtocolError. After an error the reader is unusable, because the start of the next
    frame is unknown.
    """

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        receive_buffer: ReceiveBuffer | None = None,
        pool: BufferPool | None = None,
        *,
        asks: bool = False,
        small_frame_bytes_max: int = SMALL_FRAME_BYTES_MAX,
        frame_bytes_min: int = REQUEST_BYTES_MIN,
    ) -> None:
        """As FrameReceiver's; requests of other apis than Produce have at most ``small_frame_bytes_max`` bytes."""
        super().__init__(frame_bytes_max, receive_buffer, pool, asks=asks)
        self.frame_bytes_min = frame_bytes_min
        self.small_frame_bytes_max = small_frame_bytes_max

    def next_frame(self) -> memoryview | None:
        """The next whole frame, or None when more bytes are needed.

        Raises FrameTooLargeError when a frame announces more than its limit, RemoteProtocolError when it announces too
        little.
        """
        if self._large is not None:
            return self._take_large()
        held, start, end = self._held, self._start, self._end
        if end - start < _LENGTH_AND_API_KEY.size:
            if end - start < LENGTH_SIZE:
                return None
            [length] = _LENGTH.unpack_from(held, start)
            self._check_length(length, self.frame_bytes_max)
            if length > end - start - LENGTH_SIZE:
                return None
            self._start = start + LENGTH_SIZE + length  # so few are allowed where frames have no api key
            return memoryview(bytearray(held[start + LENGTH_SIZE : self._start]))
        length, api_key = _LENGTH_AND_API_KEY.unpack_from(held, start)
        limit = self.frame_bytes_max if api_key == PRODUCE else min(self.small_frame_bytes_max, self.frame_bytes_max)
        if not self.frame_bytes_min <= length <= limit:
            self._check_length(length, limit)
        begin = start + LENGTH_SIZE
        if begin + length <= end:
            self._start = begin + length
            self.announced = 0
            frame = held[begin : begin + length]
            return frame if self._shared is not None else memoryview(bytearray(frame))
        self._announce(length)
        return None

    def _check_length(self, length: int, limit: int) -> None:
        if length > limit:
            raise FrameTooLargeError(
                f"a request of {length} bytes was announced, the limit is {limit}", size=length, limit=limit
            )
        if length < self.frame_bytes_min:
            raise RemoteProtocolError(f"a request of {length} bytes was announced: too few for its header")
