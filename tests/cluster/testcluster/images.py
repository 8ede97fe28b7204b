# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which images the cluster needs, in one OCI layout in the cache, each named by what it is made of.

The project's own come from controller/Dockerfile, on a base that debootstrap makes once; a change
of our code makes only their last layer anew.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping

from testcluster import binaries as programs
from testcluster import settings
from testcluster.buildah import Store
from testcluster.commands import run
from testcluster.layout import Image, prune
from testcluster.node import PAUSE_IMAGE

OPERATOR_IMAGE = f"localhost/training-operator:{programs.TRAINING_OPERATOR}"
TRAINER_IMAGE = "localhost/trainer:dev"
TOOLBOX_IMAGE = "localhost/toolbox:dev"
INIT_IMAGE = "localhost/init:dev"
CONTROLLER_IMAGE = "localhost/rover-kf-controller:dev"
SIDECAR_IMAGE = "localhost/rover-kf-sidecar:dev"
STEPS_IMAGE = "localhost/rover-kf-steps:dev"

_RELEASE = "bookworm"
# python3 for our images; busybox for throw-away pods.
_BASE_PACKAGES = "python3,python3-venv,ca-certificates,busybox-static"
_NSLOOKUP = pathlib.Path(__file__).with_name("nslookup")
_NEEDLESS = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Images:
    """All images; built where the cache lacks them.

    Args:
        cache: the cache's folder.
        report: called with a line for every build that takes time.
    """

    cache: pathlib.Path
    report: Callable[[str], None] = print

    @property
    def store(self) -> Store:
        """The buildah store inside the cache."""
        return Store.open(self.cache / "buildah")

    def cluster(self, binaries: Mapping[str, pathlib.Path]) -> list[Image]:
        """Images that do not depend on this project: pause, operator, toolbox, trainer."""
        base = self.base()
        return [
            self._scratch(PAUSE_IMAGE, {"/pause": binaries["pause"]}, entry="/pause"),
            self._scratch(
                OPERATOR_IMAGE, {"/manager": binaries["training-operator.v1"]}, entry="/manager"
            ),
            self._scratch(TOOLBOX_IMAGE, {"/bin": self._toolbox()}),
            self._init(base),
            self._scratch(TRAINER_IMAGE, {"/pause": binaries["pause"]}, entry="/pause"),
        ]

    def project(self) -> list[Image]:
        """Images of controller and sidecar, from the working tree as it stands."""
        return [
            self._project("controller", CONTROLLER_IMAGE),
            self._project("sidecar", SIDECAR_IMAGE),
        ]

    def steps(self) -> list[Image]:
        """The image of pipeline steps; apart, since few tests need it."""
        return [self._project("steps", STEPS_IMAGE, "components")]

    def configured(self, image: str, variables: Mapping[str, str], *, empty: bool = False) -> Image:
        """The base image, or one without a file, with these variables in its configuration."""
        base = "scratch" if empty else self.base()
        key = programs.key_of(base, *(f"{name}={value}" for name, value in variables.items()))
        return self._published(
            image, key, lambda: self.store.commit(image, {}, variables=variables, base=base)
        )

    def base(self) -> str:
        """Name of the image that our Dockerfile builds on here: Debian with Python, no more."""
        image = f"localhost/rover-kf-base:{self._base_folder().name.rpartition('-')[2]}"
        archive = self._base_folder() / "image.tar"
        with self.store.locked():
            if not archive.exists():
                self._debootstrap(image, archive)
            elif not self.store.has(image):
                self.store.load(image, archive)
        return image

    def _base_folder(self) -> pathlib.Path:
        key = programs.key_of(_RELEASE, _BASE_PACKAGES, *_NEEDLESS)
        return self.cache / f"base-{key}"

    def _debootstrap(self, image: str, archive: pathlib.Path) -> None:
        self.report("making the base image (debootstrap, about a minute)")
        folder = archive.parent
        root = folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={_BASE_PACKAGES}",
                _RELEASE,
                root,
                *_mirror(),
            ],
            timeout=1200,
        )
        for name in _NEEDLESS:
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True)
        (root / "bin" / "busybox").rename(folder / "busybox")
        self.store.commit(image, {"/": root})
        self.store.export(image, archive)
        shutil.rmtree(root)

    def _toolbox(self) -> pathlib.Path:
        """Folder with busybox and a link for each of its applets that is used."""
        folder = self._base_folder() / f"toolbox-{programs.key_of(*_APPLETS)}"
        if not folder.exists():
            partial = folder.with_suffix(f".{os.getpid()}.part")
            partial.mkdir()
            shutil.copy2(self._base_folder() / "busybox", partial / "busybox")
            for name in _APPLETS:
                (partial / name).symlink_to("busybox")
            programs.publish(partial, folder)
        return folder

    def _init(self, base: str) -> Image:
        """What the operator gives to workers of Master-style jobs: a shell and nslookup."""
        files = {"/usr/local/bin/nslookup": _NSLOOKUP}
        key = programs.key_of(base, _NSLOOKUP.read_bytes())
        return self._published(
            INIT_IMAGE, key, lambda: self.store.commit(INIT_IMAGE, files, base=base)
        )

    def _scratch(self, image: str, files: Mapping[str, pathlib.Path], *, entry: str = "") -> Image:
        key = programs.key_of(
            image, entry, *(f"{target}={_identity(source)}" for target, source in files.items())
        )
        return self._published(image, key, lambda: self.store.commit(image, files, entry=entry))

    def _project(self, target: str, image: str, *more: str) -> Image:
        base, tree = self.base(), settings.REPOSITORY
        dockerfile = tree / "controller" / "Dockerfile"

        def build() -> None:
            self.report(f"building {image}")
            self.store.build(image, context=tree, dockerfile=dockerfile, target=target, base=base)

        key = programs.key_of(base, target, *_contents(tree, ("rover_kf", "controller", *more)))
        return self._published(image, key, build)

    def _published(self, name: str, key: str, build: Callable[[], None]) -> Image:
        """The image of exactly these contents in the layout, built if it is not there."""
        layout = self.cache / "images"
        reference = f"{name.rpartition('/')[2].replace(':', '-')}--{key}"
        image = Image(layout, name, reference)
        with self.store.locked():
            if image.descriptor is None:
                build()
                self.store.publish(name, layout, reference)
                prune(layout)
        return image


# Not wget: the static build ends with a segmentation fault when it looks up a name.
_APPLETS = (
    "sh",
    "sleep",
    "seq",
    "nslookup",
    "nc",
    "cat",
    "echo",
    "ls",
    "true",
    "date",
    "httpd",
    "id",
    "rm",
    "base64",
)


def _mirror() -> list[str]:
    """The mirror that this machine's apt uses, for debootstrap; empty leaves its default."""
    listing = run(["apt-cache", "policy"])
    for line in listing.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1].startswith("http") and words[2] == f"{_RELEASE}/main":
            return [words[1]]
    return []


def _identity(source: pathlib.Path) -> str:
    # Binaries lie in folders that are named by their contents' key.
    return f"{source.parent.name}/{source.name}"


def _contents(tree: pathlib.Path, folders: tuple[str, ...]) -> list[bytes]:
    parts: list[bytes] = []
    for folder in folders:
        for place, names, files in os.walk(tree / folder):
            names[:] = sorted(name for name in names if name != "__pycache__")
            for name in sorted(files):
                path = pathlib.Path(place, name)
                parts += [str(path.relative_to(tree)).encode(), path.read_bytes()]
    return parts
