# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Python's search for cyclic garbage, kept out of what is waited for.

It begins when enough objects were made, wherever that happens: naming 2,000 tensors makes enough.
With torch loaded one search takes more than 100 ms.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No search meanwhile."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
