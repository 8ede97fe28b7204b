# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An OCI image layout: images in a folder of blobs, of which a node is sent only what it lacks.

Our images differ in a last layer of a few hundred kilobytes; sending 600 MB to every node after
each change of a line took a minute, sending the layer takes a second.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pathlib
import tarfile
from collections.abc import Collection
from typing import Any

_REFERENCE = "org.opencontainers.image.ref.name"
_EMPTY: dict[str, Any] = {"schemaVersion": 2, "manifests": []}


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """One image of a layout.

    Args:
        directory: the layout's folder.
        name: what containers call it, e.g. ``localhost/pause:1``.
        reference: what the layout calls it.
    """

    directory: pathlib.Path
    name: str
    reference: str

    @property
    def descriptor(self) -> dict[str, Any] | None:
        """The manifest's entry in the layout's index; None if the image is not there."""
        index = self.directory / "index.json"
        if not index.exists():
            return None
        entries = json.loads(index.read_text())["manifests"]
        return next((entry for entry in entries if _reference(entry) == self.reference), None)

    def blobs(self) -> list[str]:
        """Digests of everything it consists of: layers, configuration, manifest."""
        entry = self.descriptor
        if entry is None:
            raise KeyError(self.reference)
        manifest = json.loads(_blob(self.directory, entry["digest"]).read_text())
        layers = [layer["digest"] for layer in manifest["layers"]]
        return [*layers, manifest["config"]["digest"], entry["digest"]]

    def write_archive(self, path: pathlib.Path, *, without: Collection[str]) -> None:
        """Write an oci-archive that leaves out blobs which its reader has."""
        entry = {**(self.descriptor or {}), "annotations": {"io.containerd.image.name": self.name}}
        index = {"schemaVersion": 2, "manifests": [entry]}
        with tarfile.open(path, "w") as archive:
            _add(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
            _add(archive, "index.json", index)
            for digest in self.blobs():
                if digest not in without:
                    source = _blob(self.directory, digest)
                    archive.add(source, arcname=str(source.relative_to(self.directory)))


def add_directory(layout: pathlib.Path, directory: pathlib.Path, reference: str) -> None:
    """Move an image in the ``dir:`` format (manifest.json, blobs by digest) into the layout."""
    manifest = directory / "manifest.json"
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    kind = json.loads(manifest.read_text())["mediaType"]
    manifest.rename(directory / digest)
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if len(path.name) == len(digest) and not (blobs / path.name).exists():
            path.rename(blobs / path.name)
    entry = {
        "mediaType": kind,
        "digest": f"sha256:{digest}",
        "size": (blobs / digest).stat().st_size,
        "annotations": {_REFERENCE: reference},
    }
    index = layout / "index.json"
    entries = json.loads(index.read_text())["manifests"] if index.exists() else []
    _write_index(layout, [*(item for item in entries if _reference(item) != reference), entry])


def prune(directory: pathlib.Path, *, keep: int = 2) -> None:
    """Forget all but the newest images of each family, and blobs that none needs.

    A family is what stands before the ``--`` of a reference; the index lists the oldest first.
    """
    document = json.loads((directory / "index.json").read_text())
    families: dict[str, list[dict[str, Any]]] = {}
    for entry in document["manifests"]:
        families.setdefault(_reference(entry).partition("--")[0], []).append(entry)
    kept = [entry for family in families.values() for entry in family[-keep:]]
    _write_index(directory, kept)
    images = [Image(directory, "", _reference(entry)) for entry in kept]
    needed = {digest.partition(":")[2] for image in images for digest in image.blobs()}
    for blob in (directory / "blobs" / "sha256").iterdir():
        if blob.name not in needed:
            blob.unlink()


def _write_index(layout: pathlib.Path, entries: list[dict[str, Any]]) -> None:
    partial = layout / "index.json.part"
    partial.write_text(json.dumps({**_EMPTY, "manifests": entries}))
    partial.rename(layout / "index.json")


def _reference(entry: dict[str, Any]) -> str:
    return str(entry.get("annotations", {}).get(_REFERENCE, ""))


def _blob(directory: pathlib.Path, digest: str) -> pathlib.Path:
    return directory / "blobs" / pathlib.Path(*digest.split(":"))


def _add(archive: tarfile.TarFile, name: str, document: dict[str, Any]) -> None:
    data = json.dumps(document).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
