# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles Kubernetes, CoreDNS, the Training Operator and the pause process, once a version.

About 14 minutes from an empty Go cache on two cores, 40 s from a warm one, nothing when the
cache has them. The key is everything that decides the result: modules, sums, sources and flags.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import shutil

from testcluster import settings
from testcluster.commands import run
from testcluster.errors import ClusterError
from testcluster.releases import Release

TRAINING_OPERATOR = "v1.9.3"


@dataclasses.dataclass(frozen=True, slots=True)
class GoModule:
    """One folder below tests/cluster/go and the commands that are built in it."""

    name: str
    packages: tuple[str, ...]
    binaries: tuple[str, ...]
    flags: tuple[str, ...]
    static: bool = False

    @property
    def source(self) -> pathlib.Path:
        """Folder with go.mod, go.sum and the file that imports the commands."""
        return settings.GO_MODULES / self.name


_COMPONENTS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",  # Debian's is of 2020
)

_BESIDE = (
    GoModule("coredns", (".",), ("coredns",), ("-trimpath", "-ldflags", "-s -w")),
    GoModule(
        "trainingoperator",
        ("github.com/kubeflow/training-operator/cmd/training-operator.v1",),
        ("training-operator.v1",),
        ("-trimpath", "-ldflags", "-s -w"),
        static=True,  # it runs in an image made from scratch
    ),
)


SIMULATOR = GoModule(
    "kwok",
    ("sigs.k8s.io/kwok/cmd/kwok",),
    ("kwok",),
    ("-trimpath", "-ldflags", "-s -w"),
)
"""Nodes and pods without kubelets, for the benchmark of the controller."""


OBJECT_SERVER = GoModule(
    "versitygw",
    ("github.com/versity/versitygw/cmd/versitygw",),
    ("versitygw",),
    ("-trimpath", "-ldflags", "-s -w"),
)
"""An S3 server, for the tests of checkpoints in object stores."""


# As Helm's own build says it: the Kubernetes that charts are rendered for without a cluster.
_RENDERED_FOR = (
    "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 "
    "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34 "
    "-X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 "
    "-X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=34"
)
HELM = GoModule(
    "helm",
    ("helm.sh/helm/v3/cmd/helm",),
    ("helm",),
    ("-trimpath", "-ldflags", f"-s -w {_RENDERED_FOR}"),
)
"""For the tests of the chart; Kubernetes' libraries in its go.mod are those of the newest cluster,
so that they are compiled once."""


def key_of(*parts: str | bytes) -> str:
    """Short name for exactly these contents."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


def modules(release: Release) -> tuple[GoModule, ...]:
    """Everything that a cluster of that Kubernetes is compiled from."""
    version = f"-X k8s.io/component-base/version.gitVersion={release.version}"
    kubernetes = GoModule(
        release.module,
        tuple(f"k8s.io/kubernetes/cmd/{name}" for name in _COMPONENTS),
        _COMPONENTS,
        ("-trimpath", "-ldflags", f"-s -w {version}"),
    )
    return (kubernetes, *_BESIDE)


def build(release: Release, *, report=print) -> dict[str, pathlib.Path]:
    """Build what the cache lacks.

    Args:
        release: which Kubernetes.
        report: called with a line for every build that takes time.

    Returns:
        Path of every binary by name, ``pause`` among them.
    """
    found: dict[str, pathlib.Path] = {}
    for module in modules(release):
        folder = compiled(module, report=report)
        found |= {name: folder / name for name in module.binaries}
    found["pause"] = _pause()
    return found


def module_directory(module: str, path: str) -> pathlib.Path:
    """Where Go keeps the sources of a dependency of one of our modules."""
    words = ["go", "list", "-m", "-f", "{{.Dir}}", path]
    return pathlib.Path(run(words, cwd=settings.GO_MODULES / module).strip())


def compiled(module: GoModule, *, report=print) -> pathlib.Path:
    """Folder with a module's binaries; built if the cache lacks it."""
    sources = [path.read_bytes() for path in sorted(module.source.iterdir())]
    folder = (
        settings.cache()
        / "bin"
        / f"{module.name}-{key_of(*module.flags, *module.packages, *sources)}"
    )
    if folder.exists():
        return folder
    if shutil.which("go") is None:
        raise ClusterError(
            "Go is needed to compile the test cluster (https://go.dev/dl); it is not on PATH"
        )
    report(f"compiling {module.name} (minutes at first, seconds from a warm Go cache)")
    partial = folder.with_suffix(f".{os.getpid()}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    environment = dict(os.environ)
    if module.static:
        environment["CGO_ENABLED"] = "0"
    run(
        ["go", "build", *module.flags, "-o", f"{partial}/", *module.packages],
        cwd=module.source,
        env=environment,
        timeout=2400,
    )
    return publish(partial, folder)


def _pause() -> pathlib.Path:
    source = settings.GO_MODULES / "pause.c"
    folder = settings.cache() / "bin" / f"pause-{key_of(source.read_bytes())}"
    if not folder.exists():
        partial = folder.with_suffix(f".{os.getpid()}.part")
        partial.mkdir(parents=True, exist_ok=True)
        run(["gcc", "-static", "-O1", "-o", partial / "pause", source])
        publish(partial, folder)
    return folder / "pause"


def publish(partial: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Give a finished folder its name; a build that was cut off leaves none under it."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(partial)  # another process was faster
    return folder
