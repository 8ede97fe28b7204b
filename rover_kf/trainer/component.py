# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.trainer.component``: a pipeline component's function.

A variable holds its source and parameters: the image needs neither the component nor kfp.
"""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names

_FILENAME = "<component>"


def main(environment: Mapping[str, str] = os.environ) -> None:
    """Call the function.

    Raises:
        InputError: the variable does not hold one.
    """
    text = environment.get(names.ENV_COMPONENT, "")
    try:
        order: dict[str, Any] = json.loads(text)
        source, function = str(order["source"]), str(order["function"])
        parameters: dict[str, Any] = dict(order["parameters"])
    except (ValueError, KeyError, TypeError) as cause:
        raise errors.InputError(
            f"{names.ENV_COMPONENT} holds no component; components.to_pytorchjob sets it"
        ) from cause
    # So that a traceback shows its lines.
    linecache.cache[_FILENAME] = (len(source), None, source.splitlines(keepends=True), _FILENAME)
    scope: dict[str, Any] = {"__name__": "__main__", "__file__": _FILENAME}
    exec(compile(source, _FILENAME, "exec"), scope)  # noqa: S102 - the user's own program
    scope[function](**parameters)


if __name__ == "__main__":
    main()
