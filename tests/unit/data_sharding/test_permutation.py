# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An order is the same for integers and tensors, at every size."""

from __future__ import annotations

import random

import pytest
import torch

from rover_kf.data_sharding.permutation import MAX_SIZE, Permutation, _remainder

SIZES = (1, 2, 3, 20, 147 * 147, 21_564, 10**6 + 3, 10**9 + 7, 10**12, MAX_SIZE - 1, MAX_SIZE)


@pytest.mark.parametrize("size", SIZES)
def test_tensors_have_the_order_of_integers(size):
    """Tensors are reduced by multiplication, integers by division."""
    order, drawn = Permutation(size, 3, 1), random.Random(size)
    places = [0, size - 1, *(drawn.randrange(size) for _ in range(200))]
    found = order.apply_network(torch.tensor(places)).tolist()
    assert found == [order.apply_network(place) for place in places]


@pytest.mark.parametrize("modulus", [1, 2, 3, 147, 999_999_937, 2**31 - 1, 2**31])
def test_remainders_are_exact_beside_every_multiple(modulus):
    """Where a rounded quotient would be the next whole number."""
    largest = 2**33 - 1
    multiples = torch.randint(0, largest // modulus + 1, (2000,)) * modulus
    multiples = torch.cat([multiples, torch.tensor([0, largest // modulus * modulus])])
    for beside in (-1, 0, 1):
        numbers = (multiples + beside).clamp(0, largest)
        assert _remainder(numbers.clone(), modulus).equal(numbers % modulus)
