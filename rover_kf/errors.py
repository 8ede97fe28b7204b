# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The one tree of errors; every error names what happened, carries the facts and says what to do.

::

    RoverError
    ├── InputError               the caller's input is wrong; exit code 2; nothing was created
    │   ├── ManifestError        a manifest (file, key, value, what is allowed)
    │   └── PolicyError          a ``rover-kf.io/*`` annotation (key, value, what is allowed)
    ├── NoSuchJob                no such job in that namespace
    ├── JobExists                a job of that name is already there; it is never overwritten
    ├── JobFailed                the job ended without success
    ├── WaitTimeout              the job did not get where it was waited for in time
    ├── Conflict                 the object changed between the read and the write; read again
    ├── ClusterUnavailable       the place where jobs run did not answer; retrying may help
    │   ├── Unreachable          there is no way there from here
    │   └── KindNotServed        it has no jobs of that kind
    ├── CheckpointError
    │   ├── ArenaTooSmall        the state does not fit; says the size to set
    │   ├── UnsupportedState     a value that cannot be stored without pickle, by its name
    │   ├── IncompatibleState    another script's state; a retry does not help
    │   │   └── WrongWorldSize   a world of another size saved it, each rank its own
    │   ├── CorruptSnapshot      bytes that are not a whole sealed snapshot; never restored
    │   │   └── UnknownFormat    another release wrote them; never restored, never removed
    │   └── StorageError         a storage refused a write or a read
    │       ├── CheckpointExists that step of that round is a checkpoint; its files stay
    │       ├── NotOwner         the folder of checkpoints belongs to another job
    │       └── Superseded       a later coordinator of the job writes there
    ├── StreamLost               a stream cannot resume: records are gone, or refused
    ├── DatasetReadError         a file of the data set is gone, was changed, or cannot be read
    ├── ProtocolError            bytes from another process that are not the message expected
    ├── SidecarUnavailable       the pod's sidecar did not answer
    ├── RendezvousClosed         the coordinator ended the job's rendezvous
    ├── HistoryUnavailable       the history could not be read or written; training goes on
    └── TraceExportError         a receiver of traces refused them or did not answer
"""

from __future__ import annotations

import re
import reprlib

_MOST_SHOWN = 300
"""Characters of a text, and of all that is neither a text nor a container."""


def _short_repr(value: object) -> str:
    # However large, or however deep, what somebody wrote may be.
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxtuple = 5, 12, 12, 12
    short.maxstring = short.maxother = short.maxlong = _MOST_SHOWN
    if isinstance(value, str):  # a user, a password or a key may be in a URL
        value = re.sub(r"://[^\s]*[@?][^\s]*", "://…", value)
    try:
        return short.repr(value)
    except ValueError:  # a number of more digits than Python writes
        return f"a huge {type(value).__name__}"


class RoverError(Exception):
    """Anything that rover-kf raises on purpose."""

    exit_code = 1


class InputError(RoverError):
    """The caller's input is wrong; nothing was created."""

    exit_code = 2


class ManifestError(InputError):
    """A manifest that cannot be used, with the place and what would be allowed.

    Args:
        key: dotted path inside the manifest, e.g. ``spec.runPolicy``.
        value: what stands there (``None`` if nothing does).
        allowed: one phrase saying what may stand there.
        source: file or object that it came from.
    """

    def __init__(self, key: str, value: object, *, allowed: str, source: str = "manifest") -> None:
        super().__init__(f"{source}: {key} is {_short_repr(value)}; allowed: {allowed}")
        self.key, self.value, self.allowed, self.source = key, value, allowed, source


class PolicyError(InputError):
    """A policy annotation with an unknown key or a value out of range."""

    def __init__(self, key: str, value: object, *, allowed: str, source: str = "manifest") -> None:
        shown = _short_repr(value)
        super().__init__(f"{source}: annotation {key} is {shown}; allowed: {allowed}")
        self.key, self.value, self.allowed, self.source = key, value, allowed, source


class NoSuchJob(RoverError):
    """No job of that name; list the namespace's jobs to see what is there."""


class JobExists(RoverError):
    """A job of that name exists; delete it or choose another name."""

    exit_code = 2


class JobFailed(RoverError):
    """The job ended without success; the message holds the verdict."""


class WaitTimeout(RoverError):
    """The job did not reach the state that was waited for in time; it goes on."""


class Conflict(RoverError):
    """The object changed since it was read; read it again and retry."""


class ClusterUnavailable(RoverError):
    """The cluster did not answer in time or refused the connection."""


class Unreachable(ClusterUnavailable):
    """There is no way there from here; what is asked of it has to come by another one."""


class KindNotServed(ClusterUnavailable):
    """The cluster has no jobs of that kind: the Training Operator's definition is not there."""


class CheckpointError(RoverError):
    """Anything that goes wrong between a tensor and its stored copy."""


class ArenaTooSmall(CheckpointError):
    """The state does not fit into the arena.

    Args:
        needed: bytes that one slot would need.
        available: bytes that one slot can have.
    """

    def __init__(self, needed: int, available: int, advice: str) -> None:
        super().__init__(
            f"the state needs {needed} bytes a slot, the arena has {available}; {advice}"
        )
        self.needed, self.available = needed, available


class UnsupportedState(CheckpointError):
    """A value of the state that is neither a tensor nor plain data, by its name."""


class IncompatibleState(CheckpointError):
    """What was saved is not what this script restores; no restart changes that."""


class WrongWorldSize(IncompatibleState):
    """Each rank of a world of another size has saved its own; only such a world can restore it."""


class CorruptSnapshot(CheckpointError):
    """Bytes that do not form a whole snapshot; they are never restored."""


class UnknownFormat(CorruptSnapshot):
    """A manifest that this release cannot read, although it is as it was written.

    Nothing is known of the checkpoint, so retention never removes it.
    """


class StorageError(CheckpointError):
    """A storage refused a write or a read; the cause is chained."""


class CheckpointExists(StorageError):
    """That step of that round is a checkpoint already; its files are never replaced."""


class NotOwner(StorageError):
    """The folder of checkpoints belongs to another job."""


class Superseded(StorageError):
    """A later coordinator of this job writes to the folder of checkpoints."""


class StreamLost(RoverError):
    """A stream cannot be read on as it was: records are gone, cannot be read, or are refused."""


class DatasetReadError(RoverError):
    """A file of the data set is gone, was changed or cannot be read; the message says where."""


class ProtocolError(RoverError):
    """A message from another process that cannot be read as what it should be."""


class SidecarUnavailable(RoverError):
    """The pod's sidecar did not answer on its socket."""


class RendezvousClosed(RoverError):
    """The coordinator closed the rendezvous: the job has ended or has failed."""


class HistoryUnavailable(RoverError):
    """The history database cannot be used now; nothing that trains depends on it."""


class TraceExportError(RoverError):
    """A receiver of OpenTelemetry traces refused them or did not answer; they may be sent again."""
