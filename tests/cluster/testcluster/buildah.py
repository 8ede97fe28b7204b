# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Building images with buildah in a store of our own inside the cache; no daemon, no registry."""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from testcluster.commands import run, succeeds
from testcluster.layout import add_directory

# Settings of the host's pip that decide where packages come from; the rest is taste.
_PIP_KEYS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "proxy",
    "cert",
    "timeout",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """Images and layers of one buildah store.

    Args:
        directory: where everything is kept.
        driver: ``overlay`` where the kernel lets us, else ``vfs`` (every layer a whole copy).
    """

    directory: pathlib.Path
    driver: str

    @classmethod
    def open(cls, directory: pathlib.Path) -> Store:
        """Open (or begin) the store; finds out once which driver works here."""
        directory.mkdir(parents=True, exist_ok=True)
        chosen = directory / "driver"
        if not chosen.exists():
            chosen.write_text("overlay" if _overlay_works(directory) else "vfs")
        return cls(directory, chosen.read_text())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time builds; the next finds its work done."""
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def has(self, image: str) -> bool:
        """Whether an image of that name is in the store."""
        return succeeds(self._command("inspect", "--type", "image", image))

    def commit(
        self,
        image: str,
        files: Mapping[str, pathlib.Path],
        *,
        entry: str = "",
        user: str = "",
        variables: Mapping[str, str] | None = None,
        base: str = "scratch",
    ) -> None:
        """Make an image of these files (path in the image to path here) and those of the base."""
        container = run(self._command("from", base)).strip()
        try:
            for target, source in files.items():
                run(self._command("copy", container, source, target))
            config = [
                *(["--entrypoint", f'["{entry}"]'] if entry else []),
                *(["--user", user] if user else []),
                *(f"--env={name}={value}" for name, value in (variables or {}).items()),
            ]
            if config:
                run(self._command("config", *config, container))
            run(self._command("commit", "-q", container, image))
        finally:
            run(self._command("rm", container))

    def build(
        self, image: str, *, context: pathlib.Path, dockerfile: pathlib.Path, target: str, base: str
    ) -> None:
        """Build a target of a Dockerfile on a local base; pip reaches the index as ours does."""
        with tempfile.TemporaryDirectory() as scratch:
            pip = pathlib.Path(scratch) / "pip.conf"
            mounts = _pip_configuration(pip)
            volumes = [word for source, place in mounts for word in ("-v", f"{source}:{place}:ro")]
            run(
                self._command(
                    "bud",
                    "--layers",
                    "--isolation",
                    "chroot",
                    *volumes,
                    "--build-arg",
                    f"BASE={base}",
                    "-f",
                    dockerfile,
                    "--target",
                    target,
                    "-t",
                    image,
                    context,
                ),
                timeout=1200,
            )

    def export(self, image: str, archive: pathlib.Path) -> pathlib.Path:
        """Write the image as a docker-archive, whole or not at all."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(f".{os.getpid()}.part")
        partial.unlink(missing_ok=True)
        run(self._command("push", "-q", image, f"docker-archive:{partial}:{image}"))
        partial.rename(archive)
        return archive

    def load(self, image: str, archive: pathlib.Path) -> None:
        """Bring an exported image back into the store under the same name."""
        found = run(self._command("pull", "-q", f"docker-archive:{archive}")).strip()
        run(self._command("tag", found, image))

    def publish(self, image: str, layout: pathlib.Path, reference: str) -> None:
        """Add the image to an OCI layout under that reference, its layers uncompressed."""
        layout.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=layout) as folder:
            # Not the transport oci:, which compresses all layers anew whatever it is told.
            run(self._command("push", "-q", "--disable-compression", image, f"dir:{folder}"))
            add_directory(layout, pathlib.Path(folder), reference)

    def _command(self, verb: str, *words: str | pathlib.Path) -> list[str]:
        places = ["--root", str(self.directory / "root"), "--runroot", str(self.directory / "run")]
        return ["buildah", *places, "--storage-driver", self.driver, verb, *map(str, words)]


def _overlay_works(directory: pathlib.Path) -> bool:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        place = pathlib.Path(folder)
        for name in ("lower", "upper", "work", "merged"):
            (place / name).mkdir()
        options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
        if not succeeds(["mount", "-t", "overlay", "overlay", "-o", options, place / "merged"]):
            return False
        run(["umount", place / "merged"])
        return True


def _pip_configuration(path: pathlib.Path) -> list[tuple[str, str]]:
    """Write this machine's pip settings as one file; returns what to mount with it."""
    pip = (
        shutil.which(
            "pip", path=f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        )
        or "pip"
    )
    settings: dict[str, str] = {}
    for line in run([pip, "config", "list"]).splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in _PIP_KEYS:
            settings[key] = value.strip("'\"")
    config = configparser.ConfigParser(interpolation=None)
    config["global"] = settings
    with path.open("w") as file:
        config.write(file)
    mounts = [(str(path), "/etc/pip.conf")]
    certificates = pathlib.Path("/etc/ssl/certs")
    if certificates.is_dir():
        mounts.append((str(certificates), str(certificates)))
    wheels = settings.get("find-links", "")
    return mounts + [(word, word) for word in _folders(wheels.split())]


def _folders(words: Sequence[str]) -> list[str]:
    return [word for word in words if pathlib.Path(word).is_dir()]
