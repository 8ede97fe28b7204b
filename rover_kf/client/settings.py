# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What client and CLI are told by the environment; read here and nowhere else.

| variable | meaning | default |
|---|---|---|
| ROVER_KF_STATE | folder of embedded jobs, their logs and claims | ``~/.rover-kf`` |
| ROVER_KF_HISTORY | SQLAlchemy URL, or a controller's https one | SQLite in the state folder |
| ROVER_KF_ON | ``embedded`` or ``kubernetes``: where the CLI's verbs act | ``embedded`` |
| ROVER_SIDECAR_IMAGE | image of init container and sidecar | ``rover-kf-sidecar:<version>`` |
| ROVER_CONTROLLER_ACCOUNT | ``namespace:name`` that may tell jobs patched here what to do | none |
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import urllib.parse
from collections.abc import Mapping

import rover_kf
from rover_kf import errors
from rover_kf.injection.settings import InjectionSettings

CLUSTERS = ("embedded", "kubernetes")


@dataclasses.dataclass(frozen=True, slots=True)
class ClientSettings:
    """One field for each variable above."""

    state: pathlib.Path
    history: str
    cluster: str
    sidecar_image: str
    controller_account: str = ""

    @property
    def injection(self) -> InjectionSettings:
        """What injection needs of this place."""
        return InjectionSettings(self.sidecar_image, self.controller_account)

    @property
    def has_history(self) -> bool:
        """Whether there may be runs to learn from; to look for them does not make a file."""
        file = self.history.removeprefix("sqlite:///")
        return file == self.history or pathlib.Path(urllib.parse.unquote(file)).exists()

    def with_overrides(self, cluster: str = "", history: str = "") -> ClientSettings:
        """These settings with what is given in their place.

        Raises:
            InputError: there is no such place.
        """
        if cluster and cluster not in CLUSTERS:
            raise errors.InputError(f"place is {cluster!r}; allowed: {' or '.join(CLUSTERS)}")
        return dataclasses.replace(
            self, cluster=cluster or self.cluster, history=history or self.history
        )


def read(
    environment: Mapping[str, str] | None = None, *, state: pathlib.Path | None = None
) -> ClientSettings:
    """Read the settings; ``state`` precedes ROVER_KF_STATE.

    Raises:
        InputError: a variable has a value that is not allowed.
    """
    told = os.environ if environment is None else environment
    place = told.get("ROVER_KF_ON", CLUSTERS[0])
    if place not in CLUSTERS:
        raise errors.InputError(f"ROVER_KF_ON is {place!r}; allowed: {' or '.join(CLUSTERS)}")
    home = pathlib.Path(told.get("ROVER_KF_STATE") or pathlib.Path.home() / ".rover-kf")
    folder = (state or home).expanduser().absolute()
    return ClientSettings(
        state=folder,
        history=told.get("ROVER_KF_HISTORY") or _url(folder / "history.db"),
        cluster=place,
        sidecar_image=told.get("ROVER_SIDECAR_IMAGE") or f"rover-kf-sidecar:{rover_kf.__version__}",
        controller_account=_account(told.get("ROVER_CONTROLLER_ACCOUNT", "")),
    )


def _url(file: pathlib.Path) -> str:
    """Of a SQLite database; what has a meaning in URLs is escaped, all else stays readable."""
    return "sqlite:///" + str(file).replace("%", "%25").replace("?", "%3F")


def _account(text: str) -> str:
    namespace, _, name = text.partition(":")
    if text and not (namespace and name and ":" not in name):
        message = f"ROVER_CONTROLLER_ACCOUNT is {text!r}; give it as namespace:name of the account"
        raise errors.InputError(message)
    return text
