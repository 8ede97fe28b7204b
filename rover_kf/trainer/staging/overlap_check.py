# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a script keeps what ``overlap=True`` asks of it, found out while its saves stay safe.

Every save copies at once. A second copy of the tensors that would have been copied beside training
stays as a reference. Until the next optimizer step a thread compares the live tensors with it: what
differs at any time would have been mixed into the overlapped copy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

_log = logging.getLogger("rover_kf")

_PAUSE_SECONDS = 0.002
"""Between two comparisons of all tensors."""
_SHOWN = 3


class OverlapCheck:
    """The comparisons of one training process; one save at a time."""

    def __init__(self) -> None:
        self.checked = 0
        """Saves that were compared."""
        self.mutated: dict[str, int] = {}
        """Entries of the state that changed under an overlapped copy: the first step of each."""
        self._window: _Window | None = None
        self._hook: RemovableHandle | None = None

    def start(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begin with a save, before anything can change its tensors.

        Args:
            step: that is saved.
            tensors: that ``overlap=True`` copies after save() has returned.
        """
        self.finish()
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)
        if tensors:
            self._window = _Window(step, tensors)

    def finish(self) -> None:
        """End the comparison: an overlapped copy would be done by now."""
        window, self._window = self._window, None
        if window is None:
            return
        changed = window.finish()
        self.checked += 1
        new = [name for name in changed if name not in self.mutated]
        self.mutated.update(dict.fromkeys(new, window.step))
        if new:
            more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
            _log.warning(
                "rover-kf: overlap=True would have mixed two states in step %d: %s%s changed "
                "after save() had returned, before the next optimizer step. Call finish() before "
                "they change, or keep overlap=False",
                window.step,
                ", ".join(new[:_SHOWN]),
                more,
            )

    def close(self) -> None:
        """End, and report what was found."""
        self.finish()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self.checked and not self.mutated:
            _log.warning(
                "rover-kf: %d saves were checked, and nothing changed under an overlapped copy; "
                "this script may use overlap=True",
                self.checked,
            )

    def _before_step(self, *_: object) -> None:
        self.finish()


class _Window:
    """The time in which one save would still be copied."""

    def __init__(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self.step, self._tensors = step, tensors
        self._reference = {name: _bits(tensor).clone() for name, tensor in tensors.items()}
        self._changed: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rover-overlap-check", daemon=True)
        self._thread.start()

    def finish(self) -> list[str]:
        """Entries that were not what they were at the save, at any comparison."""
        self._ended.set()
        self._thread.join()
        self._compare()
        return [name for name in self._tensors if name in self._changed]

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE_SECONDS):
            self._compare()

    def _compare(self) -> None:
        for name, reference in self._reference.items():
            if name not in self._changed and not _is_same(self._tensors[name], reference):
                self._changed.add(name)


def _is_same(tensor: torch.Tensor, reference: torch.Tensor) -> bool:
    try:
        return torch.equal(_bits(tensor), reference)
    except RuntimeError:  # its memory was given back, or it is on another device
        return False


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes: values that are no number equal themselves."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)
