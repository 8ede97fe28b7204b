# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow and the Training Operator cannot do with a TFJob, refused by name.

docs/tfjob.md has what was seen of each.
"""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.injection.adapters import TENSORFLOW
from rover_kf.injection.policy import RoverPolicy

_SPECS = f"spec.{TENSORFLOW.specs}"


def check(manifest: Manifest, policy: RoverPolicy, source: str) -> None:
    """Refuse a TFJob that could not train.

    Raises:
        ManifestError: its replica types do not go together, or it has the operator leave workers
            out of TF_CONFIG.
        PolicyError: a wish that needs a world of another size, or torch.
    """
    counts = {item.kind: item.replicas for item in TENSORFLOW.replicas(manifest)}
    if "ps" in counts and not TENSORFLOW.masters(manifest):
        allowed = "a Chief beside PS: its program drives TensorFlow 2's ParameterServerStrategy"
        raise errors.ManifestError(f"{_SPECS}.Chief", None, allowed=allowed, source=source)
    if "ps" in counts and "worker" not in counts:
        allowed = "at least one Worker beside PS: the chief's program trains on workers alone"
        raise errors.ManifestError(f"{_SPECS}.Worker", None, allowed=allowed, source=source)
    dynamic = manifest["spec"].get("enableDynamicWorker")
    if dynamic:
        allowed = (
            "false: with it the operator's TF_CONFIG names no worker to the Chief and no chief to "
            "the workers, and TensorFlow 2 finds the workers nowhere else"
        )
        key = "spec.enableDynamicWorker"
        raise errors.ManifestError(key, dynamic, allowed=allowed, source=source)
    _check_policy(policy, counts, source)


def check_update(old: Manifest, new: Manifest, source: str) -> None:
    """Refuse a change of size while the job runs.

    Raises:
        ManifestError: replicas were changed, or a type of them, and the job is not suspended.
    """
    policy = old["spec"].get("runPolicy") or {}
    if policy.get("suspend"):
        return
    before = {item.key: item.replicas for item in TENSORFLOW.replicas(old)}
    after = {item.key: item.replicas for item in TENSORFLOW.replicas(new)}
    for key in (*before, *(key for key in after if key not in before)):
        if before.get(key) == after.get(key):
            continue
        allowed = (
            f"{before.get(key, 0)} while the job runs: every process was told the cluster's size "
            "when it started, and the operator fails a TFJob that loses a pod. Set "
            "spec.runPolicy.suspend to true, wait until its pods are gone, then change it and "
            "resume"
        )
        path = f"{_SPECS}.{key}.replicas"
        raise errors.ManifestError(path, after.get(key), allowed=allowed, source=source)


def _check_policy(policy: RoverPolicy, counts: Mapping[str, int], source: str) -> None:
    fixed, workers = "TF_CONFIG fixes a TFJob's size while it runs", counts.get("worker", 0)
    if policy.scaling.mode == "auto" and "ps" not in counts:  # a PS' cores may grow
        _refuse("scaling.mode", "auto", f"off or recommend: {fixed}", source)
    for key, value in (("scaling.min", policy.scaling.min), ("scaling.max", policy.scaling.max)):
        if value is not None and value != workers:
            _refuse(key, value, f"{workers}, the job's Worker replicas: {fixed}", source)
    if policy.preflight.mode != "off":
        _refuse("preflight.mode", policy.preflight.mode, "off: the check needs torch", source)


def _refuse(key: str, value: object, allowed: str, source: str) -> None:
    raise errors.PolicyError(names.PREFIX + key, value, allowed=allowed, source=source)
