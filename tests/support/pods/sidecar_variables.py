# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Variables of a sidecar that a test starts without injection."""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf.api import codec, names
from rover_kf.injection.policy.rover_policy import RoverPolicy


def sidecar_variables(stated: Mapping[str, str]) -> dict[str, str]:
    """The environment: variables as they are, policy keys such as ``checkpoint.path`` as one.

    Args:
        stated: by variable or policy key; a policy key without a value is left out.
    """
    policy = {names.PREFIX + key: text for key, text in stated.items() if "." in key and text}
    read = RoverPolicy.from_annotations(policy)
    variables = {name: text for name, text in stated.items() if "." not in name}
    return {**variables, names.ENV_POLICY: codec.dumps(read).decode()}
