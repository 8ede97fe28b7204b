# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Setting the clock of running processes, and of nothing else on the machine.

No namespace has a wall clock of its own. But who asks for the time calls code that the kernel has
mapped into each process (the vDSO); that code is replaced there by one that asks the kernel and
adds some seconds. The machine's clock, the monotonic clock and what the kernel itself measures stay
as they are. Children of a process inherit it, a program that is started anew does not.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import platform
import signal
import struct
from collections.abc import Callable, Iterable, Iterator

from testcluster.errors import ClusterError
from testcluster.waiting import until

_SYMBOLS = 11
"""Type of an ELF section of dynamic symbols."""
_CLOCK_GETTIME, _GETTIMEOFDAY, _TIME = 228, 96, 201
"""Numbers of system calls."""
_TRIES = 50


@contextlib.contextmanager
def ahead(processes: Callable[[], Iterable[int]], seconds: int) -> Iterator[None]:
    """The wall clock of these processes is so many seconds ahead inside the block.

    Args:
        processes: their numbers on this machine; asked again at the end, as some may be children.
        seconds: fewer than none: behind.

    Raises:
        ClusterError: this machine's processor is not known, or there is no such process.
    """
    if platform.machine() != "x86_64":
        raise ClusterError(f"clocks of {platform.machine()} processes cannot be set here")
    if not [pid for pid in processes() if _set(pid, seconds)]:
        raise ClusterError("no process was left whose clock could be set")
    try:
        yield
    finally:
        # The same code with other seconds: a thread may be in the middle of it.
        for pid in processes():
            _set(pid, 0)


def _moved(seconds: int) -> dict[str, bytes]:
    by = struct.pack("<i", seconds)
    add = b"\x48\x81\x06" + by  # addq seconds, (%rsi)
    return {
        # The system call; then, of CLOCK_REALTIME and of CLOCK_REALTIME_COARSE, add.
        "__vdso_clock_gettime": _call(_CLOCK_GETTIME)
        + b"\x85\xff\x74\x05\x83\xff\x05\x75\x07"
        + add
        + b"\xc3",
        # The system call; then, if there is where to, add.
        "__vdso_gettimeofday": _call(_GETTIMEOFDAY)
        + b"\x48\x85\xff\x74\x07\x48\x81\x07"
        + by
        + b"\xc3",
        # The system call, the sum; if there is where to, there as well.
        "__vdso_time": _call(_TIME) + b"\x48\x05" + by + b"\x48\x85\xff\x74\x03\x48\x89\x07\xc3",
    }


def _call(number: int) -> bytes:
    return b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"


def _set(pid: int, seconds: int) -> bool:
    """Write the code into the process; False if it is gone."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError), _outside(pid) as begin:
        with pathlib.Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            places = _functions(_read(memory, begin, _mapped(pid)[1] - begin))
            for name, code in _moved(seconds).items():
                memory.seek(begin + places[name])
                memory.write(code)
        return True
    return False


@contextlib.contextmanager
def _outside(pid: int) -> Iterator[int]:
    """The process stands still, none of its threads in the code that is replaced: where that is."""
    begin, end = _mapped(pid)
    for _ in range(_TRIES):
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: _stands(pid), seconds=5, every=0.001)
            if not any(begin <= place < end for place in _places(pid)):
                yield begin
                return
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    raise ClusterError(f"process {pid} does nothing but ask for the time")


def _threads(pid: int) -> list[pathlib.Path]:
    return list(pathlib.Path(f"/proc/{pid}/task").iterdir())


def _stands(pid: int) -> bool:
    states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in _threads(pid)]
    return all(state in "TtZX" for state in states)


def _places(pid: int) -> list[int]:
    """What each thread would do next."""
    words = [(one / "syscall").read_text().split() for one in _threads(pid)]
    return [int(found[-1], 16) for found in words if len(found) > 1]


def _mapped(pid: int) -> tuple[int, int]:
    """Where the kernel's code is."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            begin, end = line.split()[0].split("-")
            return int(begin, 16), int(end, 16)
    raise ProcessLookupError(f"process {pid} has no such code: it is ending")


def _functions(code: bytes) -> dict[str, int]:
    """Where each function begins; of a 64-bit ELF file."""
    begin = struct.unpack_from("<Q", code, 0x28)[0]
    size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, begin + i * size) for i in range(count)]
    found = {}
    for section in sections:
        if section[1] == _SYMBOLS:
            names = sections[section[6]][4]
            for place in range(section[4], section[4] + section[5], 24):
                name, value = struct.unpack_from("<I4xQ", code, place)
                at = names + name
                found[code[at : code.index(b"\0", at)].decode()] = value
    return found


def _read(memory: io.RawIOBase, begin: int, size: int) -> bytes:
    memory.seek(begin)
    return memory.read(size) or b""
