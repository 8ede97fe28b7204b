# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What makes a folder on storage a checkpoint: the manifest, written last.

The coordinator writes it when the commit is complete; restore trusts nothing without it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.format import checksum

NAME = "manifest.json"
FORMAT = 2
MAX_BYTES = 64 << 20
"""Of a manifest; one of ten thousand ranks has 2 MiB."""

_FOLDER = re.compile(r"step-([0-9]{12,18})-(?:([0-9]{1,18})-)?([0-9]{1,18})(?:-([0-9]{1,9}))?")
_SAFE_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.safetensors")
_RANK_FILE = re.compile(r"rank-[0-9]{5,9}(-[0-9a-f]+)?\.safetensors")


@dataclasses.dataclass(frozen=True, slots=True)
class RankFile:
    """One rank's file."""

    rank: int
    name: str
    """Below the checkpoint's folder."""
    length: int
    """Bytes."""
    checksum: int
    """CRC-32C."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """A whole checkpoint."""

    owner: str
    """``namespace/name`` of the job that saved it."""
    state: State
    """As it is stored."""
    origin: State
    """As it was saved: an older one where a round has stored again what it was restored from."""
    world_size: int
    replicated: bool
    """Every rank held the same shared tensors; the files have a part of them each."""
    files: tuple[RankFile, ...]
    """Of every rank, in order."""
    saved_at: float = 0.0
    format: int = FORMAT
    pieces: bool = False
    """Some tensors were held in pieces."""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the script measured of the state."""

    def fits(self, world_size: int) -> bool:
        """Whether a world of that size can restore it."""
        return self.replicated or self.pieces or self.world_size == world_size


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class CheckpointFolder:
    """A folder of the storage that is named like a checkpoint; it may hold a whole one or not.

    In order of rounds, then steps: a newer round starts from the newest valid step that there was,
    so what an older one left above it was damaged, whatever its step.
    """

    state: State
    location: str = dataclasses.field(compare=False)
    """A path or a URL, as a person would name it."""

    @property
    def step(self) -> int:
        """Of the state."""
        return self.state.step

    @property
    def name(self) -> str:
        """Its name below the job's place."""
        return folder_name(self.state)

    @property
    def manifest_location(self) -> str:
        """Where its manifest stands, if it has one."""
        return f"{self.location}/{NAME}"


def folder_name(state: State) -> str:
    """The folder of a state: ``step-<step>-<generation>-<round>-<save>``.

    Format 1 knew neither generations nor saves, and named its folders ``step-<step>-<round>``.
    """
    step, current = f"step-{state.step:012d}", state.round
    if not current.generation and state.save == 1:
        return f"{step}-{current.number}"
    return f"{step}-{current.generation}-{current.number}-{state.save}"


def file_name(rank: int, suffix: str = "") -> str:
    """The file of a rank.

    Args:
        rank: whose state it is.
        suffix: what tells it from a file of that rank that is there already; none: it is the first.
    """
    return f"rank-{rank:05d}{suffix and '-'}{suffix}.safetensors"


def is_rank_file_name(name: str) -> bool:
    """Whether ``file_name`` gives it."""
    return _RANK_FILE.fullmatch(name) is not None


def parse_folder(location: str) -> CheckpointFolder | None:
    """Read the name at the end of a path or URL; None if it is not ours."""
    name = location.rsplit("/", 1)[-1]
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    step, generation, number = (int(part or 0) for part in match.groups()[:3])
    save = int(match[4] or 1)
    found = CheckpointFolder(State(RoundId(generation, number), step, save), location)
    # Written in another way it would lead to another folder.
    return found if found.name == name else None


def is_safe_file_name(name: str) -> bool:
    """Whether it can be a rank's file: a name in the checkpoint's folder, not the manifest's."""
    return _SAFE_FILE.fullmatch(name) is not None


def to_bytes(manifest: Manifest) -> bytes:
    """JSON with a checksum of its own.

    Raises:
        ProtocolError: a file's name leads elsewhere; it came from a rank's report.
    """
    for file in manifest.files:
        if not is_safe_file_name(file.name):
            raise errors.ProtocolError(f"{file.name!r} is not the name of a rank's file")
    body = _canonical(codec.encode(manifest))
    whole = {"manifest": json.loads(body), "crc32c": checksum.extend(0, body)}
    return json.dumps(whole, indent=1).encode()


def from_bytes(data: bytes, folder: CheckpointFolder) -> Manifest:
    """Read a manifest and check it against its own checksum and its folder's name.

    Raises:
        UnknownFormat: it is as it was written, in a form that this release does not know.
        CorruptSnapshot: it is damaged, or belongs to another folder.
    """
    manifest = _decode(_checked_tree(data, folder), folder)
    if manifest.state != folder.state:
        raise errors.CorruptSnapshot(f"{folder.manifest_location} speaks of another checkpoint")
    strange = [file.name for file in manifest.files if not is_safe_file_name(file.name)]
    if strange:
        raise errors.CorruptSnapshot(f"{folder.manifest_location} names a file {strange[0]!r}")
    return manifest


def _checked_tree(data: bytes, folder: CheckpointFolder) -> Any:
    """Return what the manifest's own checksum covers."""
    try:
        parsed = json.loads(data)
        body = _canonical(parsed.get("manifest")) if isinstance(parsed, dict) else b""
    except (ValueError, RecursionError) as cause:
        raise errors.CorruptSnapshot(
            f"{folder.manifest_location} cannot be read: {cause}"
        ) from cause
    if not isinstance(parsed, dict) or not {"manifest", "crc32c"} <= parsed.keys():
        raise _unknown(folder, "it is JSON, but lacks the keys manifest and crc32c")
    if parsed["crc32c"] != checksum.extend(0, body):
        raise errors.CorruptSnapshot(f"{folder.manifest_location} differs from its own checksum")
    return parsed["manifest"]


def _decode(tree: Any, folder: CheckpointFolder) -> Manifest:
    """Read what is undamaged: a part that cannot be read was written so."""
    stated = tree.get("format", FORMAT) if isinstance(tree, dict) else None
    if stated not in (1, FORMAT):
        raise _unknown(folder, f"it has format {stated}; this release reads {FORMAT}")
    try:
        return codec.decode(Manifest, _from_format_1(tree) if stated == 1 else tree)
    except (ValueError, KeyError, TypeError, RecursionError, errors.ProtocolError) as cause:
        raise _unknown(folder, str(cause)) from cause


def _unknown(folder: CheckpointFolder, reason: str) -> errors.UnknownFormat:
    return errors.UnknownFormat(
        f"{folder.manifest_location} is undamaged, but this release cannot read it: {reason}. "
        "Restore it with the release that wrote it; it is not removed here"
    )


def _from_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """The same with a state in place of its step and its round, which was called generation."""
    rest = {name: content[name] for name in content if name not in ("step", "generation")}
    state = State(RoundId(0, content["generation"]), content["step"])
    name = codec.encode(state)
    return {**rest, "owner": "", "state": name, "origin": name, "format": FORMAT}


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
