# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverClient: one object for a job's whole life, embedded or on Kubernetes.

Called by CLI, notebooks and components. Every method reads afresh; nothing is cached. Its methods
stand by what they are about: drafts.py, trainings.py, live.py, runs.py, and kubeflow_verbs.py for
kubeflow's own names; all of them share abode.py.
"""

from __future__ import annotations

import pathlib
from types import TracebackType
from typing import final

from rover_kf.client import settings
from rover_kf.client.kubeflow_verbs import KubeflowVerbs
from rover_kf.cluster.local import LocalCluster


@final
class RoverClient(KubeflowVerbs):
    """Submits, watches, scales and reports jobs.

    **Usage**::

        with RoverClient() as rover:                      # embedded: jobs end with the block
            job = rover.submit("manifests/samples/digits.yaml")
            rover.wait(job.key, until="Succeeded", timeout=120)
            rover.report(job.key, "report.html")

    Args:
        cluster: where jobs are, or a TrainingClient of kubeflow's that is connected with it; an
            embedded one in the settings' state folder by default.
        told: settings; the environment's by default.
    """

    @classmethod
    def at(
        cls, place: str = "", *, state: str = "", history: str = "", context: str = ""
    ) -> RoverClient:
        """A client by names alone, for command lines and pipeline steps.

        Args:
            place: ``embedded`` or ``kubernetes``; empty: what ROVER_KF_ON says.
            state: folder of embedded jobs; empty: the settings'.
            history: SQLAlchemy URL; empty: the settings'.
            context: of the kubeconfig; empty: in a pod its own cluster, else the current one.

        Raises:
            InputError: there is no such place.
            ClusterUnavailable: there is no cluster to talk to.
        """
        told = settings.read(state=pathlib.Path(state) if state else None).over(place, history)
        if told.place == "embedded":
            return cls(told=told)
        # Only here, so that embedded work starts without loading the Kubernetes client.
        from rover_kf.cluster import kubernetes_connection  # noqa: PLC0415

        return cls(kubernetes_connection.from_environment(context=context or None), told=told)

    def __enter__(self) -> RoverClient:
        if isinstance(self.cluster, LocalCluster):
            self.cluster.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
