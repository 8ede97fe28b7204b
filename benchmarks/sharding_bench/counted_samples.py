# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A data set that costs nothing: each sample is its own number."""

from __future__ import annotations

from torch.utils.data import Dataset


class Counted(Dataset[int]):
    """Any number of samples that do not exist."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index
