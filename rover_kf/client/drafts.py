# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs before they run: patched, sized, submitted."""

from __future__ import annotations

import logging
import pathlib

from rover_kf import errors
from rover_kf.api.decisions import Recommendation
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob
from rover_kf.client import admission, bounds, manifests
from rover_kf.client.abode import Abode
from rover_kf.client.kubeflow_client import Model, manifest_of
from rover_kf.client.rehearsing import DryRun, rehearse
from rover_kf.client.storage_pace import paced
from rover_kf.cluster.local import LocalCluster
from rover_kf.doctor import Diagnosis, examine
from rover_kf.injection.inject import Injected, inject
from rover_kf.injection.policy import RoverPolicy
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.recommend import recommend

LOG = logging.getLogger(__name__)

Given = Manifest | Model | pathlib.Path | str
"""A job: a mapping, a model of kubeflow's client, a path, or a text of YAML or JSON."""


class Drafts(Abode):
    """What a client does with manifests."""

    def patch(self, given: Given) -> Injected:
        """Inject a job without submitting it.

        Raises:
            InputError: it cannot be used; the message names file, key, value and what is allowed.
        """
        source, _ = paced(_read(given), self.history)
        return self._inject(source)

    def recommend(
        self,
        given: Given,
        *,
        dry_run: DryRun | None = None,
        constraints: Constraints | None = None,
        prices: PriceTable | None = None,
        parameters: float | None = None,
        trained: float | None = None,
    ) -> Recommendation:
        """Sizes for a job from the history of its like, a dry run, else from its manifest.

        Args:
            given: mapping, model of kubeflow's client, path, or text of YAML or JSON.
            dry_run: how its script is tried on this machine; None: it is not.
            constraints: what may be had at most, beside quotas and nodes, which are looked up.
            prices: what an hour of each costs.
            parameters: of the model, where neither history nor dry run tell of it.
            trained: of them, those that are trained; None: all (fewer is LoRA or the like).

        Raises:
            InputError: the manifest cannot be used, or its script made no step.
        """
        source = _read(given)
        namespace = source.job["metadata"].get("namespace") or "default"
        return recommend(
            source.job,
            self.history,
            profile=None if dry_run is None else rehearse(source, dry_run),
            constraints=bounds.bounded(self.cluster, namespace, constraints),
            prices=prices,
            parameters=parameters,
            trained=trained,
            source=source.name,
        )

    def submit(self, given: Given, *, inject: bool = True) -> ObservedJob:
        """Create a job; embedded it runs, and is looked after, in this process.

        Where ``memory.max`` lets the memory limit be raised, the job starts with the one that runs
        alike were raised to.

        Args:
            given: mapping, model of kubeflow's client, path, or text of YAML or JSON.
            inject: patch it first; a job that is patched already is not changed by that.

        Raises:
            InputError: refused before anything started.
            JobExists: a job of that name is there; it is left alone.
        """
        return self.submit_source(_read(given), inject=inject)

    def submit_source(self, source: manifests.Source, *, inject: bool = True) -> ObservedJob:
        """The same of a job that is read already; relative scripts are looked for in its folder."""
        if inject:
            source, _ = paced(self._fed(source), self.history)
        injected = self._inject(source) if inject else Injected(dict(source.job))
        if not isinstance(self.cluster, LocalCluster):
            job = self.cluster.create_job(injected.manifest)
        else:
            job = self.cluster.create_job(injected.manifest, folder=source.folder)
        for event in injected.warnings:
            self._tell(job.key, event)
        if inject and isinstance(self.cluster, LocalCluster):
            self.look_after(job.key)
        return job

    def _tell(self, key: JobKey, event: Event) -> None:
        """Put an Event on a job that is there: who may create jobs may not always create Events."""
        try:
            self.cluster.emit(key, event)
        except (errors.InputError, errors.ClusterUnavailable) as refusal:
            LOG.warning(
                "%s: %s: %s (no Event tells it: %s)", key, event.reason, event.message, refusal
            )

    def diagnose(self, namespace: str = "default", given: Manifest | None = None) -> Diagnosis:
        """What the cluster lacks for jobs of a namespace, and how to mend it; creates nothing.

        Args:
            namespace: that jobs go to.
            given: a job that is to be tried; None tries a small example.

        Raises:
            InputError: jobs are embedded, or the job is wrong.
            ClusterUnavailable: the API server does not answer at all.
        """
        return examine(self.api, namespace, given, settings=self.settings.injection)

    def _inject(self, source: manifests.Source) -> Injected:
        embedded = isinstance(self.cluster, LocalCluster)
        if embedded:
            admission.check_storage(source)
        return inject(
            source.job,
            settings=self.settings.injection,
            source=source.name,
            allow_unmounted=embedded,
        )

    def _fed(self, source: manifests.Source) -> manifests.Source:
        """With the memory that runs alike had to be given, as far as the job's policy goes."""
        annotations = source.job["metadata"].get("annotations") or {}
        most = RoverPolicy.from_annotations(annotations, source=source.name).memory.max
        if most is None:
            return source
        found = recommend(source.job, self.history, source=source.name)
        return manifests.fed(source, found, most=most)


def _read(given: Given) -> manifests.Source:
    return manifests.load(manifest_of(given) if isinstance(given, Model) else given)
