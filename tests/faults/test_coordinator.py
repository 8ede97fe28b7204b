# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's sidecar for real, killed, replaced and stopped; launchers are this test's."""

from __future__ import annotations

import concurrent.futures

from sidecar_pods import SidecarPod, ended, job_folder

from rover_kf.api import names
from rover_kf.api.checkpoints import Holding, ResolveReply, ResolveRequest


def test_a_restart_between_the_answers_of_one_round():
    """One rank has heard what to restore, and does not ask again; the coordinator is killed before
    the other has: its next one answers at once, and the same."""
    with job_folder() as (folder, net):
        pod = SidecarPod(folder, 0, f"{net}.1", f"{net}.1")

        def resolve(rank: int) -> ResolveReply:
            place = {"local_rank": 0, "rank": rank, "world_size": 2, "step": 7}
            content = {"replicated": True, "snapshot_bytes": 9, "checksum": 9}
            held = Holding(f"train-worker-{rank}", "nowhere:1", **place, **content)
            asked = ResolveRequest(round=3, rank=rank, world_size=2, holdings=(held,))
            return pod.ask(names.PATH_COMMIT_RESOLVE, asked, ResolveReply, local=False)

        with ended(pod):
            pod.start().ready()
            with concurrent.futures.ThreadPoolExecutor(2) as ranks:
                first, second = ranks.map(resolve, (0, 1))
            assert (first.step, second.step) == (7, 7)
            pod.kill()
            pod.start().ready()
            assert resolve(1) == second
