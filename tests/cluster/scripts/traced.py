# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a sample script unchanged and prints its state's digest at every save and restore.

``traced.py digits.py --steps 100``: lines ``trace saved|restored <step> <sha256 of all tensors>``.
What is saved has rank 0's running statistics, which a rank's own step has not.
"""

import hashlib

import torch
import wrapped

import rover_kf


def digest(value, found=None):
    """SHA-256 over all tensors of a nested state, in order."""
    outermost = found is None
    found = hashlib.sha256() if outermost else found
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            digest(value[key], found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            digest(item, found)
    elif isinstance(value, torch.Tensor):
        found.update(value.detach().contiguous().numpy().tobytes())
    return found.hexdigest() if outermost else None


class Traced(rover_kf.Checkpointer):
    """The same, telling."""

    def restore(self, state):
        """Restore, then tell."""
        step = super().restore(state)
        print(f"trace restored {step} {digest(state)} from {self.restored_from}", flush=True)
        return step

    def save(self, step, state, **known):
        """Tell, then do the same."""
        print(f"trace saved {step} {digest(state)}", flush=True)
        return super().save(step, state, **known)


wrapped.run(Traced)
