# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A disk that takes 100 MB/s, and saves that come faster than it takes them."""

from __future__ import annotations

import time

import pytest

from tests.support.faults.hanging_folder import disk, must_be_root
from tests.support.faults.slow_disk import slowed
from tests.support.pods.sidecar_pods import job_folder
from tests.support.pods.storage_pod import StoragePod

pytestmark = pytest.mark.timeout(300)

SIZE, RATE, STEPS = 64 << 20, 100_000_000, 60


def test_saves_never_wait_for_a_slow_disk(tmp_path):
    """Sixty saves of 64 MiB as fast as they go: each is safe in memory in less than the disk would
    need for it, in the middle. What is stored is whole, the newest among it, and the disk wrote as
    fast as it can and no faster: the steps between were replaced by newer ones."""
    must_be_root()
    with job_folder() as (folder, place), disk(tmp_path / "disk", 1024) as volume:
        pod = StoragePod(folder, place, volume.folder / "pvc", SIZE)
        try:
            with slowed(pod.sidecar.process.pid, volume.folder, RATE):
                pod.trainer.restore(1)
                pod.save(1)
                pod.durable(1)
                begun, written = time.monotonic(), {1}
                saves = []
                for step in range(2, STEPS + 1):
                    saves.append(pod.save(step))
                    written |= {found.step for found in pod.stored.complete_folders()}
                saving = time.monotonic() - begun
                pod.durable(STEPS)
                seconds = time.monotonic() - begun
                written |= {found.step for found in pod.stored.complete_folders()}
                for found in pod.stored.complete_folders():
                    pod.check(found.step)
        finally:
            pod.sidecar.kill()
    rate = (len(written) - 1) * SIZE / seconds
    middle = sorted(saves)[len(saves) // 2]
    print(
        f"{STEPS - 1} saves in {saving:.1f} s, {1e3 * middle:.0f} ms each in the middle; "
        f"{len(written) - 1} stored in {seconds:.1f} s, {rate / 1e6:.0f} MB/s"
    )
    assert middle < SIZE / RATE
    assert 2 <= len(written) - 1 < STEPS - 1
    assert rate < 1.1 * RATE
