# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who differs from whom, and in what: decided from digests and listings alone."""

from __future__ import annotations

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api import codec
from rover_kf.api.replication import ReplicaDigest, TensorChecksum
from rover_kf.checkpoint import divergence
from rover_kf.coordinator import replica_comparison
from rover_kf.sidecar.http import app
from tests.support.states import identities

ranks = st.dictionaries(st.integers(0, 40), st.integers(0, 3), min_size=1, max_size=12)
states = st.dictionaries(st.text(min_size=1, max_size=8), st.integers(0, 1), max_size=12)


def _sums(state: dict[str, int]) -> tuple[TensorChecksum, ...]:
    return tuple(TensorChecksum(name, value) for name, value in state.items())


@settings(deadline=None)
@given(ranks)
def test_ranks_are_suspects_unless_they_hold_what_most_hold(held):
    """Each rank is in one group with its equals; the largest group is right if it is one of two or
    more ranks and the only one of its size; else nobody is."""
    found = divergence.group_by_digest(held)
    assert sorted(rank for group in found.groups for rank in group) == sorted(held)
    assert [len({held[rank] for rank in group}) for group in found.groups] == [1] * len(
        found.groups
    )
    sizes = collections.Counter(held.values()).most_common()
    value, most = sizes[0]
    decided = most > 1 and (len(sizes) == 1 or sizes[1][1] < most)
    assert found.has_plurality == decided
    assert found.is_unanimous == (len(sizes) == 1)
    right = [rank for rank in held if decided and held[rank] == value]
    assert found.suspects == tuple(sorted(set(held) - set(right)))
    assert len({held[rank] for rank in found.representatives}) == len(found.representatives)


@settings(deadline=None)
@given(states, st.lists(states, min_size=1, max_size=3))
def test_tensors_are_named_where_listings_differ(first, others):
    """Exactly those of another checksum than in the first listing, or that one of the two lacks;
    without one the digests are the same."""
    named = divergence.differing_names([_sums(first), *map(_sums, others)])
    names = {name for other in others for name in {*first, *other}}
    expected = {n for n in names for other in others if first.get(n) != other.get(n)}
    assert len(named) == len(set(named))
    assert set(named) == expected
    same_order = [{name: state[name] for name in sorted(state)} for state in (first, *others)]
    digests = {divergence.combine_digests(_sums(state)) for state in same_order}
    assert (len(digests) == 1) == (not expected)


def test_a_listing_is_bounded():
    """However many tensors of however long names there are, the message fits, and a tensor that
    differs shows in it."""
    names = [f"{'é' * 300}.{index}" for index in range(3 * divergence.MAX_LISTED - 1)]
    sums = [TensorChecksum(name, 2**32 - 1) for name in names]
    odd = [*sums[:5000], TensorChecksum(names[5000], 7), *sums[5001:]]
    listings = [divergence.condense_listing(sums), divergence.condense_listing(odd)]
    told = ReplicaDigest(
        pod="p" * 253,
        rank=0,
        world_size=2,
        tensors=len(sums),
        digest=0,
        listing=listings[0],
        state=identities.state(100),
    )
    size = len(codec.dumps(told))
    print(f"{len(sums)} tensors: {len(listings[0])} entries, {size} bytes")
    assert len(listings[0]) == divergence.MAX_LISTED
    assert size < app.MAX_BODY_BYTES
    (named,) = divergence.differing_names(listings)
    assert named.startswith("…é")
    assert named.endswith(f".{5000 // 3 * 3} or the 2 after it")
    assert divergence.condense_listing(()) == ()


def _text(held: dict[int, int], **changes: object) -> str:
    pods = {rank: f"pod-{rank}" for rank in held}
    facts = {"pods": pods, "tensors": ("model.w",), "count": 9, "equal": None, **changes}
    return replica_comparison.mismatch_message(500, divergence.group_by_digest(held), **facts)


def test_the_minority_is_named():
    """Ranks, pods, tensors, and how long it was well."""
    text = _text({0: 1, 1: 1, 2: 5, 3: 1}, equal=identities.state(450))
    assert text.startswith(
        "step 500: rank 2 (pod-2) differs from the other 3 in 1 of 9 tensors that all ranks should "
        "hold alike: model.w. All were equal at step 450"
    )
    assert "ranks 2 (pod-2), 3 (pod-3) differ from the other 3 in" in _text(
        {0: 1, 1: 1, 2: 5, 3: 6, 4: 1}
    )


def test_nobody_is_blamed_where_nobody_can_tell():
    """Of two ranks, and of two equal halves, all are named."""
    text = _text({0: 1, 1: 2})
    assert "ranks 0 (pod-0), 1 (pod-1) differ in" in text
    assert "of two nobody can tell which is wrong. No earlier step was found equal" in text
    assert "where no group is the largest nobody" in _text({0: 1, 1: 2, 2: 1, 3: 2})


def test_the_text_fits_an_event():
    """Of hundreds of ranks and tensors some are named, the others are counted."""
    held = {rank: int(rank >= 300) * rank for rank in range(512)}
    pods = {rank: f"{'p' * 60}-{rank}" for rank in held}
    tensors = tuple(f"{'t' * 115}{index}" for index in range(200))
    text = _text(held, pods=pods, tensors=tensors, count=512, equal=identities.state(10**9))
    assert "and 209 more differ from the other 300 in 200 of 512" in text
    assert "and 197 more. All were" in text
    print(f"{len(text)} characters")
    assert len(text) < 1000
