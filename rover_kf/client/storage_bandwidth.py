# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a job's storage is, as runs before it have measured: written into its policy.

A pod's grace goes by it. As an annotation it stays with the job, so that the job is the same when
it is patched again, by whom and whenever.
"""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.client.manifests import ManifestSource
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.recommender.recommend import recommend

KEY = f"{names.PREFIX}checkpoint.storage-bandwidth"


def apply_storage_bandwidth(
    source: ManifestSource, history: HistoryStore
) -> tuple[ManifestSource, str]:
    """The source with what its storage took in earlier runs, and a line that says so.

    Args:
        source: left as it is if it states a figure, or has no storage.
        history: one that cannot be read, or knows nothing, changes nothing.

    Raises:
        InputError: the manifest cannot be used.
    """
    metadata = source.job["metadata"]
    annotations = metadata.get("annotations") or {}
    policy = RoverPolicy.from_annotations(annotations, source=source.name).checkpoint
    if policy.path is None or policy.storage_bandwidth is not None:
        return source, ""
    found = recommend(source.job, history, source=source.name).get("storage_rate")
    if found is None:
        return source, ""
    # What is below the least that may be stated is a storage that hardly answers.
    rate = max(round(found.target), 1 << 20)
    job = {
        **source.job,
        "metadata": {**metadata, "annotations": {**annotations, KEY: str(rate)}},
    }
    return source.with_job(job), f"{KEY} {rate} ({rate / 1e6:.0f} MB/s): {found.why}"
