"""Many fsyncs in one system call: Linux's own queue for them (io_submit(2) with IOCB_CMD_FDSYNC, since 4.18).

Threads could do the same, but each has to take the interpreter lock again after every fsync, which takes 5 ms a file
when the loop is busy. Here one thread releases the lock once, the kernel's workers sync the files side by side, and
each file has its own result, as from fdatasync(2). docs/decisions/0003 has the measurements.

Python has no such call, so ctypes makes it, imported when first needed. Only ``filesystem`` uses this module.
"""

import errno
import struct
import sys
from collections.abc import Sequence
from typing import Any, Final

QUEUE_LENGTH: Final = 256
"""Fsyncs in flight at a time in one queue; the kernel lets all processes together have 65,536 (``fs.aio-max-nr``)."""

_SYNC_DATA, _SYNC_ALL = 3, 2  # IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC
_CONTROL: Final = struct.Struct("<QIIHhIQQqQII")  # struct iocb, of 64 bytes
_EVENT: Final = struct.Struct("<QQqq")  # struct io_event, of 32 bytes
_NUMBERS: Final = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2), "riscv64": (0, 4, 2)}
"""System call numbers of io_setup, io_getevents and io_submit, by machine; all of these are little-endian."""

_idle: Final[list["KernelQueue"]] = []
"""Idle queues. They stay until the process ends."""


class KernelQueue:
    """One queue of the kernel. Used by one thread at a time."""

    def __init__(self, ctypes: Any, call: Any, numbers: tuple[int, int, int]) -> None:
        """``call`` is libc's syscall(2). Raises OSError when the kernel or a sandbox refuses."""
        self._ctypes = ctypes
        self._call = call
        setup, self._getevents, self._submit = numbers
        self._context = ctypes.c_ulong(0)
        self.is_usable = True
        if call(setup, ctypes.c_long(QUEUE_LENGTH), ctypes.byref(self._context)) < 0:
            raise OSError(ctypes.get_errno(), "io_setup")

    def sync(self, descriptors: Sequence[int], *, data_only: bool) -> list[int | None]:
        """Sync at most QUEUE_LENGTH files. Returns for each its errno, 0 if it is on the disk, None if not tried."""
        ctypes = self._ctypes
        count = len(descriptors)
        codes: list[int | None] = [None] * count
        controls = ctypes.create_string_buffer(_CONTROL.size * count)
        command = _SYNC_DATA if data_only else _SYNC_ALL
        for number, descriptor in enumerate(descriptors):
            _CONTROL.pack_into(
                *(controls, number * _CONTROL.size),
                *(number, 0, 0, command, 0, descriptor, 0, 0, 0, 0, 0, 0),
            )
        begins = ctypes.addressof(controls)
        pointers = (ctypes.c_void_p * count)(*range(begins, begins + _CONTROL.size * count, _CONTROL.size))
        # The kernel takes as many as it can, from the first on. The caller syncs those after a refused one by fsync(2).
        left = max(0, self._call(self._submit, self._context, ctypes.c_long(count), pointers))
        codes[:left] = [errno.EIO] * left  # until their results arrive
        events = ctypes.create_string_buffer(_EVENT.size * count)
        while left:
            got = self._call(
                self._getevents, self._context, ctypes.c_long(left), ctypes.c_long(left), events, ctypes.c_void_p(None)
            )
            if got < 0:
                if ctypes.get_errno() == errno.EINTR:
                    continue
                self.is_usable = False
                break
            for number, _, outcome, _ in _EVENT.iter_unpack(events.raw[: got * _EVENT.size]):
                codes[number] = -outcome
            left -= got
        return codes


def sync_in_kernel(descriptors: Sequence[int], *, data_only: bool = True) -> list[int | None]:
    """Sync files side by side. Returns for each its errno, 0 if it is on the disk, None if the caller must sync it.

    ``data_only`` is fdatasync(2), else fsync(2), which directories need. For any thread; the caller keeps the
    descriptors open meanwhile.
    """
    codes: list[int | None] = []
    while len(codes) < len(descriptors):
        part = descriptors[len(codes) : len(codes) + QUEUE_LENGTH]
        queue = _take_queue()
        if queue is None:
            return codes + [None] * (len(descriptors) - len(codes))
        codes += queue.sync(part, data_only=data_only)
        if queue.is_usable:
            _idle.append(queue)
    return codes


def _take_queue() -> KernelQueue | None:
    """A queue, or None: on another system, in a sandbox that forbids it, or when too many are in use."""
    if _idle:
        return _idle.pop()
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415 - a start should not wait for it
    import platform  # noqa: PLC0415

    numbers = _NUMBERS.get(platform.machine())
    if numbers is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    try:
        return KernelQueue(ctypes, call, numbers)
    except OSError:
        return None
