# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Formulas of parallel training, the network's terms, and proposals made of both."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.recommender import communication_model, gpu_memory, parallelism_advice
from rover_kf.recommender.communication_model import StepObservation
from rover_kf.recommender.gpu_memory import DeviceMemoryModel, ParallelConfig
from rover_kf.recommender.profile import Trial

GIB = float(1 << 30)
SEVEN = gpu_memory.state_from_parameters(7e9)


def test_bytes_of_each_strategy():
    """16 bytes a parameter under DDP and Adam; a share of them under the others; LoRA."""
    assert gpu_memory.state_bytes(SEVEN, ParallelConfig(), 1) == 16 * 7e9
    assert gpu_memory.state_bytes(SEVEN, ParallelConfig(), 8) == 20 * 7e9  # buckets
    assert gpu_memory.state_bytes(SEVEN, ParallelConfig("zero1"), 8) == pytest.approx(
        (4 + 4 + 8 / 8 + 4) * 7e9
    )
    assert gpu_memory.state_bytes(SEVEN, ParallelConfig("zero2"), 8) == pytest.approx(
        (4 + 12 / 8) * 7e9
    )
    assert gpu_memory.state_bytes(SEVEN, ParallelConfig("fsdp"), 8) == pytest.approx(16 * 7e9 / 8)
    lora = gpu_memory.state_from_parameters(7e9, trained=1e7)
    assert gpu_memory.state_bytes(lora, ParallelConfig(), 1) == pytest.approx(2 * 7e9 + 14 * 1e7)
    assert gpu_memory.server_bytes(SEVEN, 4) == pytest.approx(12 * 7e9 / 4)


def test_what_is_sent():
    """A ring of gradients; half of it in bf16; three quarters more of weights under FSDP."""
    ring = 2 * 7 / 8
    gradients = 4 * 7e9
    assert gpu_memory.sent_bytes(SEVEN, ParallelConfig(), 1) == 0
    assert gpu_memory.sent_bytes(SEVEN, ParallelConfig(), 8) == ring * gradients
    assert (
        gpu_memory.sent_bytes(SEVEN, ParallelConfig(precision="bf16-gradients"), 8)
        == ring * gradients / 2
    )
    assert gpu_memory.sent_bytes(SEVEN, ParallelConfig("fsdp"), 8) == 1.5 * ring * gradients


def setting(**changes):
    held = gpu_memory.state_from_parameters(1e9)
    trials = tuple(Trial(batch, 0.1 + 0.01 * batch, 0.0, 1.0) for batch in (16, 32))
    made = parallelism_advice.ParallelismContext(
        device=DeviceMemoryModel(held, 0.0, 0.5 * GIB, 32),
        trials=trials,
        network=communication_model.from_bandwidth(10e9),
        processes=8,
        nodes=8,
        limit=64 * GIB,
    )
    return dataclasses.replace(made, **changes)


def test_what_does_not_fit_gets_ways_that_do():
    """Far too much for a device of 24 GiB: all that is proposed fits, and says by how much."""
    tight = setting(limit=24 * GIB)
    assert not tight.fits(ParallelConfig())
    found = parallelism_advice.propose_configs(tight)
    assert found
    assert [one.fits for one in found] == [True] * len(found)
    assert all(one.memory <= 24 * GIB for one in found)
    assert all(one.batch * one.accumulation >= 32 for one in found)
    assert "the present way does not" in found[0].why
    times = [one.step_seconds for one in found]
    assert times == sorted(times)


def test_nothing_is_proposed_where_all_is_well():
    """A device with room and a network that is hardly felt."""
    assert (
        parallelism_advice.propose_configs(
            setting(network=communication_model.from_bandwidth(1e13))
        )
        == ()
    )


def test_a_slow_network_gets_smaller_gradients():
    """Sending takes 7 s of a step: half of the bytes are proposed, with the time that they save."""
    slow = setting(network=communication_model.from_bandwidth(1e9))
    found = parallelism_advice.propose_configs(slow)
    assert found[0].precision == "bf16-gradients"
    assert found[0].step_seconds < 0.6 * slow.seconds_of(ParallelConfig())


def test_the_networks_terms_are_learned_from_other_jobs():
    """Made of known terms, another job's steps are predicted within a few percent."""
    true = communication_model.CommunicationModel((2e-10, 0.01, 1e-9, 1e-11, 1e-10), 0)

    def seen(job, alone, size, processes, nodes):
        seconds = true.step_seconds(alone, processes=processes, nodes=nodes, gradient_bytes=size)
        return StepObservation(seconds, alone, processes, nodes, size, job)

    worlds = [(2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (8, 4), (16, 4)]
    rows = [
        seen(job, alone, size, *world)
        for job, alone, size in (("a", 0.3, 4e7), ("b", 1.0, 4e8), ("c", 0.2, 1e7))
        for world in worlds
    ]
    learned = communication_model.fit(rows)
    assert learned.jobs == 3
    for world in (*worlds, (32, 8)):
        new = seen("d", 0.5, 1e8, *world)
        told = learned.step_seconds(0.5, processes=world[0], nodes=world[1], gradient_bytes=1e8)
        assert told == pytest.approx(new.step_seconds, rel=0.06)
    assert communication_model.fit([seen("a", 0.3, 4e7, 1, 1)]) is None
