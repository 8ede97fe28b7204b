# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Python's own collection is never left off."""

from __future__ import annotations

import gc

import pytest

from rover_kf.trainer.gc_pause import gc_paused


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_as_it_was_before(enabled):
    """Also after an error."""
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ZeroDivisionError), gc_paused():
            _ = 1 // gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
