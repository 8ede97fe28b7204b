# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Variables of a sidecar that a test starts without injection."""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf.api import codec, names
from rover_kf.injection.policy.rover_policy import RoverPolicy

ONE_POD: Mapping[str, str] = {
    names.ENV_JOB: "demo",
    names.ENV_NAMESPACE: "default",
    names.ENV_POD_NAME: "demo-worker-0",
    names.ENV_POD_UID: "uid",
    names.ENV_POD_IP: "127.0.0.1",
    names.ENV_REPLICA_TYPE: "worker",
    names.ENV_REPLICA_INDEX: "0",
    names.ENV_COORDINATOR: "demo-worker-0",
    names.ENV_NODES: "1",
    names.ENV_MIN_NODES: "1",
    names.ENV_MAX_NODES: "1",
    names.ENV_ARENA_BYTES: "1000000",
}
"""What the sidecar of a job of one pod needs besides the policy."""


def sidecar_variables(stated: Mapping[str, str]) -> dict[str, str]:
    """The environment: variables as they are, policy keys such as ``checkpoint.path`` as one.

    Args:
        stated: by variable or policy key; a policy key without a value is left out.
    """
    policy = {names.PREFIX + key: text for key, text in stated.items() if "." in key and text}
    read = RoverPolicy.from_annotations(policy)
    variables = {name: text for name, text in stated.items() if "." not in name}
    return {**variables, names.ENV_POLICY: codec.dumps(read).decode()}
