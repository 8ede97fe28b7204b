# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests from files, texts and mappings; called by client, CLI and components.

A file may hold more than the job (its claim, a ConfigMap): those documents are kept as they are
and in their order, so that a patched file can be applied whole.

A job is called by its name, or ``tfjob/NAME``, on the command line and in Python.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from rover_kf import errors
from rover_kf.api.decisions import Recommendation
from rover_kf.api.jobs import JobKey, Manifest
from rover_kf.injection import keyed_lists, patch_diff
from rover_kf.injection.limits import manifest_memory
from rover_kf.job_kinds import registry
from rover_kf.job_kinds.registry import kind_of


def parse_name(namespace: str, text: str) -> JobKey:
    """The job that is called so, as kubectl does: ``KIND/NAME``, or a PyTorchJob's name alone.

    Raises:
        InputError: there is no such kind.
    """
    word, _, name = text.rpartition("/")
    kinds = registry.job_kinds()
    called = [kind for kind in kinds if word.lower() in (kind.kind.lower(), kind.plural)]
    if not name or (word and not called):
        known = " or ".join(f"{kind.kind.lower()}/NAME" for kind in kinds)
        raise errors.InputError(f"{text!r} calls no job; give NAME, {known}")
    return JobKey(namespace, name, called[0].kind if word else kinds[0].kind)


def to_key(key: JobKey | str) -> JobKey:
    """``NAME`` (a PyTorchJob) or ``tfjob/NAME`` is in the namespace ``default``.

    Raises:
        InputError: there is no such kind.
    """
    return key if isinstance(key, JobKey) else parse_name("default", key)


def format_name(key: JobKey) -> str:
    """What to call a job."""
    return (
        key.name if key.kind == registry.job_kinds()[0].kind else f"{key.kind.lower()}/{key.name}"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestSource:
    """A job and where it came from."""

    job: Manifest
    name: str
    """File, or what stands for it in messages."""
    folder: pathlib.Path
    """Where relative scripts are looked for."""
    before: tuple[Any, ...] = ()
    """Documents of the file that stand before the job."""
    after: tuple[Any, ...] = ()

    @property
    def key(self) -> JobKey:
        """Where the job will be found."""
        metadata = self.job["metadata"]
        return JobKey(metadata.get("namespace", "default"), _name(metadata), self.job["kind"])

    def with_job(self, job: Manifest) -> ManifestSource:
        """The same file with another job in it."""
        return dataclasses.replace(self, job=job)

    def to_yaml(self) -> str:
        """All documents."""
        documents = (*self.before, self.job, *self.after)
        return "---\n".join(patch_diff.to_yaml(document) for document in documents)


def load(given: Manifest | pathlib.Path | str) -> ManifestSource:
    """Read a job from a mapping, a path, or a text of YAML or JSON.

    A string is a text if it has more than one line or begins with a brace, else a path.

    Raises:
        InputError: no such file, no YAML.
        ManifestError: it does not hold exactly one job.
    """
    if isinstance(given, Mapping):
        return _pick([given], "manifest", pathlib.Path.cwd())
    if isinstance(given, str) and ("\n" in given or given.lstrip().startswith("{")):
        return _pick(_parse(given, "manifest"), "manifest", pathlib.Path.cwd())
    path = pathlib.Path(given)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise errors.InputError(f"{path} cannot be read: {cause}") from cause
    return _pick(_parse(text, str(path)), str(path), path.absolute().parent)


def apply_sizes(source: ManifestSource, recommendation: Recommendation) -> ManifestSource:
    """The source with the sizes that runs alike have shown to be best.

    These are Worker replicas, and a memory limit where runs were killed with what is stated; it is
    never lowered. A size that comes from the manifest itself or from a default changes nothing.
    """
    job_kind = kind_of(source.job)
    specs = source.job["spec"].get(job_kind.specs) or {}
    found, worker = _learned_target(recommendation, "replicas"), specs.get("Worker")
    if job_kind.elastic and found is not None and worker is not None:
        specs = {**specs, "Worker": {**worker, "replicas": round(found)}}
        job = {**source.job, "spec": {**source.job["spec"], job_kind.specs: specs}}
        source = source.with_job(job)
    return apply_learned_memory(source, recommendation)


def apply_learned_memory(
    source: ManifestSource, recommendation: Recommendation, *, max_limit: int | None = None
) -> ManifestSource:
    """The source with the memory limit that runs alike had to be raised to.

    Args:
        source: of which a limit is raised, or not; one that is not stated stays so.
        recommendation: of runs alike.
        max_limit: bytes that it may be raised to; None is no bound.
    """
    memory = _learned_target(recommendation, "memory")
    if memory is None or not kind_of(source.job).elastic:
        return source
    limit = math.ceil(memory) if max_limit is None else min(math.ceil(memory), max_limit)

    def change(trainer: keyed_lists.Item) -> keyed_lists.Item:
        stated = manifest_memory.limit_of(trainer)
        if stated is None or stated >= limit:
            return trainer
        return {**trainer, "resources": manifest_memory.resources(trainer, limit)}

    return source.with_job(change_trainers(source.job, change))


def change_pods(
    manifest: Manifest, change: Callable[[Mapping[str, Any], str], Mapping[str, Any]]
) -> Manifest:
    """The manifest with the pod of every replica type changed.

    Args:
        manifest: of a job.
        change: gives a new spec for a pod's spec and the name of its trainer's container.
    """
    job_kind = kind_of(manifest)
    specs = dict(manifest["spec"][job_kind.specs])
    for replica in job_kind.replicas(manifest):
        template = replica.spec["template"]
        pod = change(template["spec"], job_kind.container)
        specs[replica.key] = {**replica.spec, "template": {**template, "spec": pod}}
    return {**manifest, "spec": {**manifest["spec"], job_kind.specs: specs}}


def change_trainers(
    manifest: Manifest, change: Callable[[keyed_lists.Item], keyed_lists.Item]
) -> Manifest:
    """The manifest with the trainer's container of every replica type changed."""
    return change_pods(
        manifest, lambda pod, name: keyed_lists.replace_item(pod, "containers", name, change)
    )


def _learned_target(recommendation: Recommendation, name: str) -> float | None:
    found = recommendation.get(name)
    return None if found is None or found.basis not in ("history", "profile") else found.target


def _parse(text: str, name: str) -> list[Any]:
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as cause:
        raise errors.InputError(f"{name} is not YAML: {' '.join(str(cause).split())}") from cause
    except (ValueError, TypeError, RecursionError) as cause:  # numbers, dates, keys, nesting
        raise errors.InputError(f"{name} is not YAML that can be read: {cause}") from cause


def _name(metadata: Mapping[str, Any]) -> str:
    """The job's name, or what the API server makes one of."""
    return metadata.get("name") or metadata.get("generateName") or ""


def _pick(documents: list[Any], name: str, folder: pathlib.Path) -> ManifestSource:
    known = [kind.kind for kind in registry.job_kinds()]
    kinds = [
        document.get("kind") if isinstance(document, Mapping) else None for document in documents
    ]
    jobs = [index for index, kind in enumerate(kinds) if kind in known]
    if len(jobs) != 1:
        allowed = f"exactly one {registry.allowed_kinds()} beside other documents"
        value = kinds[0] if len(kinds) == 1 else kinds
        raise errors.ManifestError("kind", value, allowed=allowed, source=name)
    place = jobs[0]
    job = documents[place]
    metadata = job.get("metadata")
    if not isinstance(metadata, Mapping) or not _name(metadata):
        found = (metadata or {}).get("name") if "metadata" in job else None
        raise errors.ManifestError("metadata.name", found, allowed="the job's name", source=name)
    return ManifestSource(
        job, name, folder, tuple(documents[:place]), tuple(documents[place + 1 :])
    )


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a file, and make the folders above it.

    Raises:
        InputError: it cannot be, with the reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise errors.InputError(f"{path} cannot be written: {cause}") from cause
