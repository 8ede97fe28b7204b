# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A data set that shows which of its samples it was asked for."""

from __future__ import annotations

from torch.utils.data import Dataset


class Numbered(Dataset):
    """Sample i is i."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index
