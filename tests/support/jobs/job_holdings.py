# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What an embedded job holds of the machine, read from the kernel's tables and not from the cluster
that runs it: processes, files in memory, sockets, and what is left in its folders."""

from __future__ import annotations

import dataclasses
import pathlib

MEMORY = pathlib.Path("/dev/shm")
"""Where memory-backed volumes are, and what programs share."""
LISTENING = "0A"
"""A TCP socket's state, as /proc/net/tcp has it."""
KEPT = frozenset(
    {"job.json", "pods.json", "events.jsonl", "logs", "token", "memory.list", "owner.lock"}
)
"""What stays in a finished job's folder until it is deleted: rover_kf/cluster/local/store.py."""


@dataclasses.dataclass(frozen=True, slots=True)
class Holdings:
    """Of one job at one moment."""

    state: pathlib.Path
    """The state folder, which runs no other job."""
    processes: frozenset[int]
    """All that have a variable of ours that names the job's folder or a volume of its pods."""
    volumes: frozenset[pathlib.Path]
    """Folders in memory of its pods, of those that were replaced, too."""
    files: frozenset[pathlib.Path]
    """In memory, mapped by its processes: in its volumes or beside them."""
    sockets: frozenset[int]
    """Inodes of its processes' TCP and Unix sockets: with a path, an abstract name or none."""
    listening: frozenset[int]
    """Those that wait for connections."""

    def left(self) -> dict[str, object]:
        """What of it is there still, and which processes came after it."""
        found = {
            "processes": self.processes & _living() | _processes(self.state, self.volumes),
            "volumes": {path for path in self.volumes if path.exists()},
            "files": {path for path in self.files if path.exists()},
            "sockets": self.sockets & (_tcp() | _unix()),
            "work": set(self.state.glob("jobs/*/*/*/work/*/*")),
        }
        return {what: value for what, value in found.items() if value}


def held_by_job(state: pathlib.Path) -> Holdings:
    """What the one job of a state folder holds now."""
    volumes = frozenset(
        pathlib.Path(line)
        for notes in state.glob("jobs/*/*/*/memory.list")
        for line in notes.read_text().splitlines()
    )
    processes = _processes(state, volumes)
    sockets = {inode for pid in processes for inode in _sockets_of(pid)}
    return Holdings(
        state=state,
        processes=processes,
        volumes=volumes,
        files=frozenset(path for pid in processes for path in _mapped(pid)),
        sockets=frozenset(sockets & (_tcp() | _unix())),
        listening=frozenset(sockets & (_tcp(LISTENING) | _unix(listening=True))),
    )


def listens(pid: int) -> bool:
    """Whether the process waits for connections by TCP."""
    return bool(_sockets_of(pid) & _tcp(LISTENING))


def _living() -> set[int]:
    pids = (int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit())
    return {pid for pid in pids if not _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _processes(state: pathlib.Path, volumes: frozenset[pathlib.Path]) -> frozenset[int]:
    """Living processes with a variable ROVER_… that names the jobs' folder or a volume."""
    places = [str(place).encode() for place in (state / "jobs", *volumes)]
    found = set()
    for pid in _living():
        try:
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        ours = [one for one in variables if one.startswith(b"ROVER_")]
        if any(place in one for one in ours for place in places):
            found.add(pid)
    return frozenset(found)


def _tcp(state: str = "") -> set[int]:
    """Inodes of TCP sockets, of one state or of any."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == (state or words[3]):
                found.add(int(words[9]))
    return found


def _unix(*, listening: bool = False) -> set[int]:
    """Inodes of Unix sockets; the flag __SO_ACCEPTCON (0x10000) is of those that listen."""
    lines = pathlib.Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    rows = [line.split() for line in lines]
    return {int(row[6]) for row in rows if not listening or int(row[3], 16) & 0x10000}


def _sockets_of(pid: int) -> set[int]:
    found = set()
    try:
        for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    except OSError:  # it has closed it, or ended
        pass
    return found


def _mapped(pid: int) -> set[pathlib.Path]:
    """Files in memory that a process maps and that have a name still."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = [line.split(maxsplit=5)[5] for line in lines if f" {MEMORY}/" in line]
    return {pathlib.Path(path) for path in paths if not path.endswith("(deleted)")}
