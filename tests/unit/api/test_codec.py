# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Messages survive the wire, and bytes that are no message are refused with their place."""

import dataclasses
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api import checkpoints, codec, decisions, jobs, membership, records, samples, status

MESSAGES = [
    value
    for module in (membership, checkpoints, status, samples, decisions, records, jobs)
    for value in vars(module).values()
    if dataclasses.is_dataclass(value)
    and value.__module__ == module.__name__
    # A view over a whole manifest stays inside its process.
    and value is not jobs.ObservedJob
]


def strategy(kind):
    """Values of a field's declared type."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(
            kind, **{field.name: strategy(hints[field.name]) for field in dataclasses.fields(kind)}
        )
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), strategy(arguments[1]), max_size=3)
    if type(None) in arguments:
        return st.none() | strategy(next(a for a in arguments if a is not type(None)))
    return {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=20),
        bool: st.booleans(),
    }[kind]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind):
    """What one process encodes, another decodes to an equal value, for every message there is."""

    @given(strategy(kind))
    def survives(value):
        assert codec.loads(kind, codec.dumps(value)) == value

    survives()


def test_a_newer_writer_may_add_a_field():
    """A field that the reader does not know is ignored, so versions can be mixed in one job."""
    assert codec.decode(status.ScaleRequest, {"nodes": 3, "color": "blue"}).nodes == 3


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"{", "not JSON"),
        (b"[]", "ScaleRequest: expected an object"),
        (b"{}", "ScaleRequest.nodes: missing"),
        (b'{"nodes": "3"}', "ScaleRequest.nodes: expected int"),
        (b'{"nodes": true}', "ScaleRequest.nodes: expected int"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(data, place):
    """Wrong bytes raise ProtocolError naming where and what was expected."""
    with pytest.raises(errors.ProtocolError, match=place.replace("[", r"\[")):
        codec.loads(status.ScaleRequest, data)


def test_the_place_of_a_wrong_leaf_is_its_path():
    """An error deep inside names each step to it."""
    data = {
        "rank": 0,
        "world_size": 1,
        "round": 1,
        "samples": [{"step": 1, "ended_at": 0, "seconds": "x"}],
    }
    with pytest.raises(errors.ProtocolError, match=r"StepReport\.samples\[0\]\.seconds"):
        codec.decode(samples.StepReport, data)


def test_values_without_a_place_in_a_message_are_refused():
    """Nothing is turned into a string silently, and NaN never reaches a wire."""
    with pytest.raises(errors.ProtocolError, match="set"):
        codec.encode({"a": {1, 2}})
    with pytest.raises(errors.ProtocolError, match="cannot be sent"):
        codec.dumps(float("nan"))


def test_integers_serve_as_floats():
    """JSON writers drop a trailing .0; the reader gives a float back."""
    goodput = codec.loads(samples.Goodput, json.dumps({"waiting": 1}))
    assert isinstance(goodput.waiting, float)


def test_a_round_knows_each_members_first_rank():
    """Ranks follow the order of members, each taking as many as it has processes."""
    first, second = membership.Member("a", "1", 0, 2), membership.Member("b", "1", 1, 3)
    formed = membership.Round(1, (first, second), 5, "host", 1)
    assert [formed.rank_offset("a"), formed.rank_offset("b")] == [0, 2]
    with pytest.raises(KeyError):
        formed.rank_offset("c")


def test_goodput_is_the_productive_share():
    """Buckets sum to the total; nothing measured gives 0, not a division by zero."""
    assert samples.Goodput(productive=3.0, recovery=1.0).fraction == 0.75
    assert samples.Goodput().fraction == 0.0
