# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer for a cluster that does not see this machine's files: an image, scripts in ConfigMaps.

The image has Python >= 3.10 and what the scripts import (torch, numpy, scikit-learn), nothing of
rover-kf.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from testcluster import trainer
from testcluster.commands import Kubectl
from testcluster.objects import apply
from testcluster.storage import NAMESPACE_LABEL

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class TrainerImage:
    """Gives jobs of one namespace the image; a testcluster.trainer.Trainer.

    Args:
        cluster: where the ConfigMaps go.
        namespace: the jobs' own.
        image: what the nodes have or can pull.
    """

    cluster: Kubectl
    namespace: str
    image: str

    def __call__(
        self,
        manifest: Mapping[str, Any],
        *,
        scripts: pathlib.Path,
        tools: pathlib.Path | None = None,
    ) -> Object:
        """Return the PyTorchJob with the image; the ConfigMaps it mounts are on the cluster then.

        Args:
            manifest: a PyTorchJob; not changed.
            scripts: folder whose ``*.py`` are seen in the container's working directory.
            tools: another one, seen at ``/tools``.
        """
        job, found = trainer.copied(manifest)
        maps: dict[str, Object] = {}
        for pod, container in found:
            trainer.prepare(pod, container, image=self.image)
            for place, folder in trainer.places(container, scripts, tools):
                name = f"{'tools' if folder is tools else 'scripts'}-{folder.name}"
                maps[name] = _config_map(self.namespace, name, folder)
                container["volumeMounts"].append(
                    {"name": name, "mountPath": place, "readOnly": True}
                )
                pod["volumes"].append({"name": name, "configMap": {"name": name}})
        apply(self.cluster, maps.values())
        return job


def _config_map(namespace: str, name: str, folder: pathlib.Path) -> Object:
    labels = {NAMESPACE_LABEL: namespace}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": {path.name: path.read_text() for path in sorted(folder.glob("*.py"))},
    }
