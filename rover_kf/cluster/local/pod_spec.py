# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""From a job's manifest to what one of its pods starts; pure; used by ``operator``.

Without root nothing can be mounted: where an argument or a variable names a mountPath, the
folder behind it is put in its place. Memory-backed volumes get a short path of their own, since
a Unix socket's path has room for 107 bytes.

Variables are as the Training Operator v1.9 and the kubelet set them
(pkg/controller.v1/pytorch/{envvar,master,elastic}.go). The operator's variables go to
``containers`` only, after the user's own: an init container has none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import rover_kf
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.cluster.local import local_admission
from rover_kf.cluster.local.container import ContainerSpec, StartupProbe

_PORT = 23456


def replica_counts(manifest: Manifest) -> dict[str, int]:
    """Replicas by type in lower case, with the operator's default of one."""
    specs = manifest["spec"][local_admission.SPECS]
    return {kind.lower(): int(spec.get("replicas", 1)) for kind, spec in specs.items()}


def operator_environment(manifest: Manifest, replica_type: str, index: int) -> dict[str, str]:
    """Return what the operator appends to each container of a replica."""
    spec, job = manifest["spec"], manifest["metadata"]["name"]
    counts = replica_counts(manifest)
    found = {"PYTHONUNBUFFERED": "1"}
    processes = str(spec.get("nprocPerNode", "auto"))
    if "master" in counts:
        rank = index + (counts["master"] if replica_type == "worker" else 0)
        nodes = sum(counts.values())
        each = int(processes) if processes.isdecimal() else 1
        address, port = f"{job}-master-0", str(_port(spec[local_admission.SPECS]["Master"]))
        found |= {
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": port,
            "WORLD_SIZE": str(nodes * each),
            "RANK": str(rank),
            "PET_NODE_RANK": str(rank),
            "PET_NNODES": str(nodes),
        }
    found["PET_NPROC_PER_NODE"] = processes
    if spec.get("elasticPolicy"):
        found |= _elastic(manifest, counts.get("worker", 1))
    return found


def _elastic(manifest: Manifest, workers: int) -> dict[str, str]:
    spec, job = manifest["spec"], manifest["metadata"]["name"]
    policy = spec["elasticPolicy"]
    least, most = policy.get("minReplicas", workers), policy.get("maxReplicas", workers)
    host = policy.get("rdzvHost", f"{job}-worker-0")
    port = policy.get("rdzvPort", _port(spec[local_admission.SPECS]["Worker"]))
    found = {
        "PET_NNODES": f"{least}:{most}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d"),
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
    }
    if policy.get("nProcPerNode"):
        found["PET_NPROC_PER_NODE"] = str(policy["nProcPerNode"])
    if policy.get("rdzvId"):
        found["PET_RDZV_ID"] = policy["rdzvId"]
    if policy.get("rdzvConf"):
        pairs = (f"{item['key']}={item['value']}" for item in policy["rdzvConf"])
        found["PET_RDZV_CONF"] = ",".join(pairs)
    if policy.get("maxRestarts") is not None:
        found["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if policy.get("standalone"):
        found["PET_STANDALONE"] = ""
    return found


def _port(replica: Mapping[str, Any]) -> int:
    for container in replica["template"]["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == "pytorchjob-port":
                return int(port["containerPort"])
    return _PORT


def pod_fields(
    manifest: Manifest, pod: str, uid: str, address: str, labels: Mapping[str, str]
) -> dict[str, str]:
    """Values that a fieldRef may ask for, by its path."""
    fields = {
        "metadata.name": pod,
        "metadata.namespace": manifest["metadata"]["namespace"],
        "metadata.uid": uid,
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
        "spec.nodeName": "localhost",
        "spec.serviceAccountName": "default",
    }
    return fields | {f"metadata.labels['{key}']": value for key, value in labels.items()}


def pod_labels(manifest: Manifest, replica_type: str, index: int) -> dict[str, str]:
    """Labels that the operator puts on a pod."""
    kind = "Master" if replica_type == "master" else "Worker"
    template = manifest["spec"][local_admission.SPECS][kind]["template"]
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    labels |= {
        names.JOB_NAME_LABEL: manifest["metadata"]["name"],
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        names.REPLICA_TYPE_LABEL: replica_type,
        names.REPLICA_INDEX_LABEL: str(index),
    }
    if replica_type == "master":
        labels["training.kubeflow.org/job-role"] = "master"
    return labels


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` as the kubelet expands it: unknown names stay, ``$$(`` is a literal ``$(``."""

    def value(hit: re.Match[str]) -> str:
        if hit[0].startswith("$$"):
            return hit[0][1:]
        return variables.get(hit[1], hit[0])

    return re.sub(r"\$?\$\(([A-Za-z_][\w.-]*)\)", value, text)


def rewrite_paths(text: str, mounts: Mapping[str, pathlib.Path]) -> str:
    """Put folders instead of mount paths at a text's start, after ``=``, ``:``, ``,``, or quoted.

    JSON, such as the policy's, has quotes around them.
    """
    if not mounts:
        return text
    roots = {mount.rstrip("/"): str(folder) for mount, folder in mounts.items()}
    longest_first = "|".join(re.escape(root) for root in sorted(roots, key=len, reverse=True))
    pattern = rf"(^|[=:,\"])({longest_first})(?=$|[/:,\"])"
    return re.sub(pattern, lambda hit: hit[1] + roots[hit[2]], text)


@dataclasses.dataclass(frozen=True, slots=True)
class Volumes:
    """Folders of one pod's volumes."""

    folders: Mapping[str, pathlib.Path]
    """By volume name."""
    memory: tuple[pathlib.Path, ...]
    """Memory-backed emptyDirs."""
    work: tuple[pathlib.Path, ...]
    """Other emptyDirs."""

    def create(self) -> None:
        """Make the pod's own folders and the claims' ones; what is there stays.

        Other users of the machine may enter none of them: a pod's socket takes no token.
        """
        for folder in self.folders.values():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove(self) -> None:
        """Remove the pod's own folders; claims and host paths stay."""
        for folder in (*self.memory, *self.work):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in {folder.parent for folder in self.work}:
            with contextlib.suppress(OSError):  # it was not made, or somebody looks into it
                folder.rmdir()

    def mounts(self, container: Mapping[str, Any]) -> dict[str, pathlib.Path]:
        """What a container sees where: mount path to folder."""
        return {
            mount["mountPath"]: self.folders[mount["name"]] / mount.get("subPath", "")
            for mount in container.get("volumeMounts") or []
        }


def prepare_volumes(pod: Mapping[str, Any], uid: str, site: PodSite) -> Volumes:
    """Return where each volume of a pod is; its uid makes its own volumes' names unique."""
    folders: dict[str, pathlib.Path] = {}
    in_memory, on_disk = [], []
    for index, volume in enumerate(pod.get("volumes") or []):
        name = volume["name"]
        if "persistentVolumeClaim" in volume:
            folders[name] = site.root / "volumes" / volume["persistentVolumeClaim"]["claimName"]
        elif "hostPath" in volume:
            folders[name] = pathlib.Path(volume["hostPath"]["path"])
        elif "projected" in volume:
            folders[name] = site.job / "token"
        elif (volume.get("emptyDir") or {}).get("medium") == "Memory":
            folders[name] = site.memory / f"rkf-{uid[:8]}-{index}"
            in_memory.append(folders[name])
        else:
            folders[name] = site.job / "work" / uid[:8] / name
            on_disk.append(folders[name])
    return Volumes(folders, tuple(in_memory), tuple(on_disk))


@dataclasses.dataclass(frozen=True, slots=True)
class LocalPodSpec:
    """Everything needed to start a pod here."""

    name: str
    uid: str
    replica_type: str
    index: int
    address: str
    restart_policy: str
    """The pod's: Always, OnFailure or Never (an ExitCode replica's pods have Never)."""
    grace: float
    init: tuple[ContainerSpec, ...]
    containers: tuple[ContainerSpec, ...]
    volumes: Volumes


@dataclasses.dataclass(frozen=True, slots=True)
class PodSite:
    """Where a job's pods are put."""

    root: pathlib.Path
    """The state folder."""
    job: pathlib.Path
    folder: pathlib.Path
    """The manifest's own folder."""
    memory: pathlib.Path
    base: Mapping[str, str]
    """Environment that stands for the image's."""
    resolve: Callable[[str], str]
    grace: float
    """Where the manifest does not say."""


def restart_policy(replica: Mapping[str, Any]) -> str:
    """The replica's policy with the operator's default."""
    return str(replica.get("restartPolicy") or "OnFailure")


def build_pod_spec(
    manifest: Manifest, site: PodSite, replica_type: str, index: int, *, uid: str, address: str
) -> LocalPodSpec:
    """Say what a replica's pod starts."""
    replica = manifest["spec"][local_admission.SPECS][
        "Master" if replica_type == "master" else "Worker"
    ]
    spec = replica["template"]["spec"]
    name = f"{manifest['metadata']['name']}-{replica_type}-{index}"
    labels = pod_labels(manifest, replica_type, index)
    volumes = prepare_volumes(spec, uid, site)
    build = _Builder(
        site=site,
        volumes=volumes,
        fields=pod_fields(manifest, name, uid, address, labels),
        logs=site.job / "logs" / f"{name}.{uid[:8]}",
    )
    added = operator_environment(manifest, replica_type, index)
    policy = restart_policy(replica)
    return LocalPodSpec(
        name=name,
        uid=uid,
        replica_type=replica_type,
        index=index,
        address=address,
        restart_policy="Never" if policy == "ExitCode" else policy,
        grace=float(spec.get("terminationGracePeriodSeconds", site.grace)),
        init=tuple(build.container(item, {}) for item in spec.get("initContainers") or []),
        containers=tuple(build.container(item, added) for item in spec["containers"]),
        volumes=volumes,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Builder:
    site: PodSite
    volumes: Volumes
    fields: Mapping[str, str]
    logs: pathlib.Path

    def container(self, spec: Mapping[str, Any], added: Mapping[str, str]) -> ContainerSpec:
        mounts = self.volumes.mounts(spec)
        variables = self._variables(spec, added, mounts)
        words = [str(word) for word in (*(spec.get("command") or []), *(spec.get("args") or []))]
        return ContainerSpec(
            name=spec["name"],
            # Written words are places and services; what a variable brings has been dealt with.
            command=tuple(
                expand(self.site.resolve(rewrite_paths(word, mounts)), variables) for word in words
            ),
            environment={**self.site.base, **variables},
            folder=self._folder(spec),
            log=self.logs / f"{spec['name']}.log",
            volumes=(*self.volumes.memory, *self.volumes.work),
            native=spec.get("restartPolicy") == "Always",
            probe=self._probe(spec),
        )

    def _variables(
        self, spec: Mapping[str, Any], added: Mapping[str, str], mounts: Mapping[str, pathlib.Path]
    ) -> dict[str, str]:
        """As the kubelet would set them; a written text's places and services are found first."""
        found: dict[str, str] = {"HOSTNAME": self.fields["metadata.name"]}
        for item in spec.get("env") or []:
            if "valueFrom" in item:
                found[item["name"]] = self._referred(item["valueFrom"], spec)
            else:
                text = self.site.resolve(rewrite_paths(str(item.get("value", "")), mounts))
                found[item["name"]] = expand(text, found)
        found |= {name: self.site.resolve(value) for name, value in added.items()}
        return found | self._overrides(spec, mounts)

    def _referred(self, source: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
        if "fieldRef" in source:
            return self.fields.get(source["fieldRef"]["fieldPath"], "")
        kind, _, resource = source["resourceFieldRef"]["resource"].partition(".")
        return str((spec.get("resources") or {}).get(kind, {}).get(resource, ""))

    def _overrides(
        self, spec: Mapping[str, Any], paths: Mapping[str, pathlib.Path]
    ) -> dict[str, str]:
        """What differs here: no cluster to verify tokens, and defaults that name mount paths."""
        found: dict[str, str] = {}
        if names.HOME in paths:
            found[names.ENV_HOME] = str(paths[names.HOME])
        if spec["name"] in (names.RUNTIME_CONTAINER, names.SIDECAR_CONTAINER):
            # What their image holds is this very installation, which may be a checkout.
            found["PYTHONPATH"] = str(pathlib.Path(rover_kf.__file__).parents[1])
        if spec["name"] == names.SIDECAR_CONTAINER:
            found[names.ENV_AUTH] = "shared"
            found[names.ENV_TOKEN_HOME] = str(self.site.job / "token")
            found[names.ENV_TLS_HOME] = ""  # nothing leaves this machine
        return found

    def _folder(self, spec: Mapping[str, Any]) -> pathlib.Path:
        """Our own containers stay away from the user's folder: its modules are not theirs."""
        if spec["name"] in (names.RUNTIME_CONTAINER, names.SIDECAR_CONTAINER):
            return self.site.job
        return local_admission.work_folder(spec, self.site.folder)

    def _probe(self, spec: Mapping[str, Any]) -> StartupProbe | None:
        probe = spec.get("startupProbe") or {}
        if "httpGet" not in probe:
            return None
        get = probe["httpGet"]
        ports = {p.get("name"): p["containerPort"] for p in spec.get("ports") or []}
        return StartupProbe(
            host=self.fields["status.podIP"],
            port=int(ports.get(get["port"], get["port"])),
            path=get.get("path", "/"),
            seconds=max(
                60.0,
                float(probe.get("periodSeconds", 10)) * float(probe.get("failureThreshold", 3)),
            ),
        )
