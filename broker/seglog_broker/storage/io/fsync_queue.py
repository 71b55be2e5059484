"""Many fsyncs in one system call: Linux's own queue for them (io_submit(2) with IOCB_CMD_FDSYNC, since 4.18).

Threads could do the same, but each has to take the interpreter lock again after every fsync, which takes 5 ms a file
when the loop is busy. Here one thread releases the lock once, the kernel's workers sync the files side by side, and
each file has its own result, as from fdatasync(2). Or no thread is needed (``begin_in_kernel``): an eventfd(2), which a
loop can wait for, becomes readable when the last file is done. If each file told it, a round of sixteen would wake the
loop sixteen times. docs/decisions/0003 has the measurements.

Python has no such call, so ctypes makes it, imported when first needed. Only ``filesystem`` uses this module.
"""

import errno
import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

QUEUE_LENGTH: Final = 256
"""Fsyncs in flight at a time in one queue; the kernel lets all processes together have 65,536 (``fs.aio-max-nr``)."""

_SYNC_DATA, _SYNC_ALL = 3, 2  # IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC
_TELL_EVENT: Final = 1  # IOCB_FLAG_RESFD
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
        self._event: int | None = None
        self.is_usable = True
        if call(setup, ctypes.c_long(QUEUE_LENGTH), ctypes.byref(self._context)) < 0:
            raise OSError(ctypes.get_errno(), "io_setup")

    def event(self) -> int | None:
        """The queue's eventfd(2), made when first needed; None if the system has none."""
        if self._event is None:
            with suppress(OSError):
                self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._event

    def submit(self, descriptors: Sequence[int], *, data_only: bool, event: int | None = None) -> int:
        """Begin to sync at most QUEUE_LENGTH files. Returns how many of them, from the first on, the kernel has taken.

        ``event`` is an eventfd(2) to which the last file adds 1 when it is finished.
        """
        ctypes = self._ctypes
        count = len(descriptors)
        controls = ctypes.create_string_buffer(_CONTROL.size * count)
        command = _SYNC_DATA if data_only else _SYNC_ALL
        for number, descriptor in enumerate(descriptors):
            tells = (0, 0) if event is None or number < count - 1 else (_TELL_EVENT, event)
            _CONTROL.pack_into(
                *(controls, number * _CONTROL.size), *(number, 0, 0, command, 0, descriptor, 0, 0, 0, 0, *tells)
            )
        begins = ctypes.addressof(controls)
        pointers = (ctypes.c_void_p * count)(*range(begins, begins + _CONTROL.size * count, _CONTROL.size))
        taken: int = self._call(self._submit, self._context, ctypes.c_long(count), pointers)
        return max(0, taken)

    def take_outcomes(self, left: int, *, wait: bool) -> list[tuple[int, int]]:
        """Returns (number, errno or 0) of finished files: of all ``left`` with ``wait``, else of those finished by now.

        If the kernel fails, ``is_usable`` is False afterwards, and the list may be short.
        """
        ctypes = self._ctypes
        found: list[tuple[int, int]] = []
        events = ctypes.create_string_buffer(_EVENT.size * left)
        while left:
            wanted = ctypes.c_long(left if wait else 0)
            got = self._call(self._getevents, self._context, wanted, ctypes.c_long(left), events, ctypes.c_void_p(None))
            if got < 0 and ctypes.get_errno() == errno.EINTR:
                continue
            if got < 0:
                self.is_usable = False
                break
            found += [
                (number, -outcome) for number, _, outcome, _ in _EVENT.iter_unpack(events.raw[: got * _EVENT.size])
            ]
            left -= got
            if not wait:
                break
        return found

    def sync(self, descriptors: Sequence[int], *, data_only: bool) -> list[int | None]:
        """Sync at most QUEUE_LENGTH files. Returns for each its errno, 0 if it is on the disk, None if not tried."""
        # The kernel takes as many as it can, from the first on. The caller syncs those after a refused one by fsync(2).
        taken = self.submit(descriptors, data_only=data_only)
        codes: list[int | None] = [None] * len(descriptors)
        codes[:taken] = [errno.EIO] * taken  # until their results arrive
        for number, code in self.take_outcomes(taken, wait=True):
            codes[number] = code
        return codes


class KernelSync:
    """Files that the kernel is syncing."""

    def __init__(self, queue: KernelQueue, event: int, taken: int, count: int) -> None:
        self.descriptor: int | None = event if taken == count else None
        """Becomes readable when the last file is finished, mostly after the others; None: look again soon."""
        self._queue = queue
        self._event = event
        self._last = taken - 1
        # Those taken count as failed until their results arrive.
        self._codes: list[int | None] = [errno.EIO] * taken + [None] * (count - taken)
        self._left = taken

    def collect(self) -> list[int | None] | None:
        """Returns the results as ``sync_in_kernel``; None while some are missing."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        found = self._queue.take_outcomes(self._left, wait=False)
        for number, code in found:
            self._codes[number] = code
            if number == self._last:
                self.descriptor = None
        self._left -= len(found)
        if not self._queue.is_usable:
            return self._codes
        if self._left:
            return None
        _idle.append(self._queue)
        return self._codes


def begin_in_kernel(descriptors: Sequence[int]) -> KernelSync | None:
    """Begin to ``fdatasync`` 1 to QUEUE_LENGTH files without a thread. Returns None, with nothing begun, if impossible.

    The caller keeps the descriptors open until all results are collected.
    """
    queue = _take_queue()
    if queue is None:
        return None
    event = queue.event()
    taken = 0 if event is None else queue.submit(descriptors, data_only=True, event=event)
    if event is None or not taken:  # the files know no such operation
        _idle.append(queue)
        return None
    return KernelSync(queue, event, taken, len(descriptors))


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
    with suppress(IndexError):  # not asked before: another thread may take the last one in between
        return _idle.pop()
    system = _system_calls()
    if system is None:
        return None
    try:
        return KernelQueue(*system)
    except OSError:
        return None


@cache
def _system_calls() -> tuple[Any, Any, tuple[int, int, int]] | None:
    """The arguments of ``KernelQueue`` on this machine, loaded once; None on another system."""
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415 - a start should not wait for it
    import platform  # noqa: PLC0415

    numbers = _NUMBERS.get(platform.machine())
    if numbers is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return ctypes, call, numbers
