# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on one machine: no root, no Kubernetes, the Training Operator's rules.

``LocalCluster`` satisfies ``cluster.protocol.Cluster``. One module a noun: ``store`` (objects on
disk), ``admission`` (what is refused), ``environment`` and ``plan`` (a replica as processes, pure),
``volumes``, ``network``, ``container`` with its ``supervisor``, ``pod``, ``verdict`` (a job's
conditions, pure), ``cleaning`` (what becomes of its pods then, pure), ``run`` (a job's pods),
``operator`` (the loop that joins them) and ``cluster`` (the face).
"""

from __future__ import annotations

from rover_kf.cluster.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
