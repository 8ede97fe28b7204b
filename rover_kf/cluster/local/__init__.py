# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on one machine: no root, no Kubernetes, the Training Operator's rules.

``LocalCluster`` satisfies ``cluster.protocol.Cluster``. ``store`` has the objects on disk,
``local_admission`` what is refused, ``pod_spec`` a replica as processes (pure), ``container`` with
its ``supervisor`` and ``pod`` what runs, ``job_conditions`` a job's status (pure), ``job_runtime``
its pods, ``operator`` the loop that joins them, and ``cluster`` the face.
"""

from __future__ import annotations

from rover_kf.cluster.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
