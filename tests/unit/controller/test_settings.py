# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's environment and its policy defaults."""

from __future__ import annotations

import pytest

from controller import settings
from controller.controller_runtime import PolicyDefaults
from rover_kf import errors

NEEDED = {"ROVER_NAMESPACE": "rover-kf-system", "ROVER_SIDECAR_IMAGE": "rover-kf-sidecar:1"}


def test_defaults_of_the_environment():
    """Two variables are enough; names that manifests refer to follow from them."""
    found = settings.read(NEEDED)
    assert found.injection.sidecar_image == "rover-kf-sidecar:1"
    assert found.injection.controller_account == "rover-kf-system:rover-kf-controller"
    assert found.webhook_hosts[0] == "rover-kf-webhook.rover-kf-system.svc"
    assert (found.webhook_port, found.health_port, found.resync_seconds) == (9443, 8081, 60.0)
    assert found.history == "sqlite:////var/lib/rover-kf/history.db"
    assert found.policy_defaults is None


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_missing_is_named(name):
    """A variable without default that is not set or empty is an error that names it."""
    with pytest.raises(errors.InputError, match=name):
        settings.read({**NEEDED, name: ""})


def test_a_number_that_is_none_is_named():
    """A port that is no number is an error that names it."""
    with pytest.raises(errors.InputError, match="ROVER_WEBHOOK_PORT is 'https'"):
        settings.read({**NEEDED, "ROVER_WEBHOOK_PORT": "https"})


def test_policy_defaults_follow_the_folder(tmp_path, caplog):
    """Files are keys; an edit takes effect, one with a mistake is logged once and changes nothing;
    the links that the kubelet makes beside them are no keys."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "checkpoint.every").write_text("20\n")
    defaults = PolicyDefaults(tmp_path)
    assert defaults.read() == {"checkpoint.every": "20"}
    (tmp_path / "checkpoint.every").write_text("many")
    assert defaults.read() == {"checkpoint.every": "20"}
    assert defaults.read() == {"checkpoint.every": "20"}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "checkpoint.every is 'many'" in caplog.text
    (tmp_path / "checkpoint.every").unlink()
    (tmp_path / "scaling.mode").write_text("off")
    assert defaults.read() == {"scaling.mode": "off"}


def test_no_folder_has_no_defaults(tmp_path):
    """Neither a folder that is not set nor one that is not there is an error."""
    assert PolicyDefaults(None).read() == {}
    assert PolicyDefaults(tmp_path / "none").read() == {}
