# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller is told by its environment; manifests/base/controller sets it.

| variable | meaning | default |
|---|---|---|
| ROVER_NAMESPACE | namespace that the controller runs in | needed |
| ROVER_ACCOUNT | its service account's name | rover-kf-controller |
| ROVER_WATCH_NAMESPACE | whose jobs it looks after; then it needs rights there alone | all |
| ROVER_SIDECAR_IMAGE | image of init container and sidecar in injected pods | needed |
| ROVER_SIDECAR_PULL_POLICY | their imagePullPolicy | IfNotPresent |
| ROVER_HISTORY | SQLAlchemy URL of the history | sqlite:////var/lib/rover-kf/history.db |
| ROVER_HISTORY_SHARED | namespaces whose runs others may learn from, by commas; ``*``: all | none |
| ROVER_HISTORY_DAYS | how long runs that ended are kept; 0: for ever | 365 |
| ROVER_POLICY_DEFAULTS | folder with one file for each policy key (a ConfigMap's mount) | none |
| ROVER_SIDECAR_CA | authorities of encrypting sidecars | /var/run/rover/sidecar-ca.crt |
| ROVER_RESYNC_SECONDS | how often every job is looked at though nothing changed | 60 |
| ROVER_WEBHOOK_PORT, ROVER_HEALTH_PORT | ports | 9443, 8081 |
| ROVER_LOG_LEVEL | DEBUG, INFO, WARNING | INFO |
| ROVER_LOG_FORMAT | json (an object a line, with job and rank), text | json |
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.injection.settings import InjectionSettings

WEBHOOK = "rover-kf-webhook"
"""Name of Service, Secret and MutatingWebhookConfiguration (manifests/base/webhook)."""
HOOK = "inject.rover-kf.io"
"""Name of the one webhook in that configuration."""
_AUTHORITIES = f"{names.TOKEN_HOME}/{names.CONTROLLER_AUTHORITIES}"


@dataclasses.dataclass(frozen=True, slots=True)
class ControllerSettings:
    """One field for each variable above."""

    namespace: str
    account: str
    watch_namespace: str
    """Empty: all. Otherwise no webhook is served, nor the history: both need cluster rights."""
    sidecar_image: str
    sidecar_pull_policy: str
    history: str
    history_shared: tuple[str, ...]
    history_days: float
    policy_defaults: pathlib.Path | None
    sidecar_authorities: pathlib.Path
    """File with the certificates of the authorities of jobs whose sidecars encrypt; optional."""
    resync_seconds: float
    webhook_port: int
    health_port: int
    log_level: str
    log_format: str

    @property
    def injection(self) -> InjectionSettings:
        """What injection needs of this place."""
        return InjectionSettings(
            sidecar_image=self.sidecar_image,
            controller_account=f"{self.namespace}:{self.account}",
            image_pull_policy=self.sidecar_pull_policy,
        )

    @property
    def webhook_hosts(self) -> tuple[str, ...]:
        """DNS names that the API server calls the webhook by."""
        return (f"{WEBHOOK}.{self.namespace}.svc", f"{WEBHOOK}.{self.namespace}")


def read(environment: Mapping[str, str]) -> ControllerSettings:
    """Read the settings.

    Raises:
        InputError: a variable is missing or is no number; the message names it.
    """
    defaults = environment.get("ROVER_POLICY_DEFAULTS")
    return ControllerSettings(
        namespace=_needed(environment, "ROVER_NAMESPACE"),
        account=environment.get("ROVER_ACCOUNT", "rover-kf-controller"),
        watch_namespace=environment.get(names.ENV_WATCH_NAMESPACE, ""),
        sidecar_image=_needed(environment, "ROVER_SIDECAR_IMAGE"),
        sidecar_pull_policy=environment.get("ROVER_SIDECAR_PULL_POLICY", "IfNotPresent"),
        history=environment.get("ROVER_HISTORY", "sqlite:////var/lib/rover-kf/history.db"),
        history_shared=tuple(
            name.strip()
            for name in environment.get("ROVER_HISTORY_SHARED", "").split(",")
            if name.strip()
        ),
        history_days=_number(environment, "ROVER_HISTORY_DAYS", 365),
        policy_defaults=pathlib.Path(defaults) if defaults else None,
        sidecar_authorities=pathlib.Path(environment.get("ROVER_SIDECAR_CA", _AUTHORITIES)),
        resync_seconds=_number(environment, "ROVER_RESYNC_SECONDS", 60),
        webhook_port=int(_number(environment, "ROVER_WEBHOOK_PORT", 9443)),
        health_port=int(_number(environment, "ROVER_HEALTH_PORT", 8081)),
        log_level=environment.get("ROVER_LOG_LEVEL", "INFO").upper(),
        log_format=environment.get(names.ENV_LOG_FORMAT, ""),
    )


def _needed(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise errors.InputError(f"{name} is not set; see controller/README.md")
    return value


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    value = environment.get(name) or str(default)
    try:
        return float(value)
    except ValueError as cause:
        raise errors.InputError(f"{name} is {value!r}; a number is needed") from cause
