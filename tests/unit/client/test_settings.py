# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What client and CLI are told by the environment."""

from __future__ import annotations

import pathlib

import pytest

from rover_kf import errors
from rover_kf.client import settings
from rover_kf.history import store


def test_defaults_stand_in_the_home_folder():
    """Without variables everything is embedded, in one folder of the user's."""
    told = settings.read({})
    assert told.cluster == "embedded"
    assert told.state == pathlib.Path.home() / ".rover-kf"
    assert told.history == f"sqlite:///{told.state}/history.db"
    assert told.injection.sidecar_image.startswith("rover-kf-sidecar:")


def test_variables_go_before_defaults_and_arguments_before_variables(tmp_path):
    """Each variable is read; a state folder given by the caller wins."""
    told = settings.read(
        {
            "ROVER_KF_STATE": "/elsewhere",
            "ROVER_KF_HISTORY": "postgresql://db/x",
            "ROVER_KF_ON": "kubernetes",
            "ROVER_SIDECAR_IMAGE": "mine:1",
            "ROVER_CONTROLLER_ACCOUNT": "team:rover-kf-controller",
        },
        state=tmp_path,
    )
    assert told == settings.ClientSettings(
        tmp_path, "postgresql://db/x", "kubernetes", "mine:1", "team:rover-kf-controller"
    )
    assert told.injection.controller_account == "team:rover-kf-controller"
    assert told.with_overrides("embedded", "sqlite://").cluster == "embedded"


@pytest.mark.parametrize("name", ["what?x=1", "feature%2Fx", "100%", "a b#c;d", "ü"])
def test_the_history_lies_in_the_state_folder_whatever_it_is_called(tmp_path, name):
    """What has a meaning in a URL is a letter of a folder's name."""
    told = settings.read({}, state=tmp_path / name)
    assert not told.has_history
    with store.open_history(told.history) as history:
        assert history.list() == ()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "history.db").exists()
    assert told.has_history


def test_an_unknown_place_is_refused():
    """A place that does not exist is named with those that do."""
    with pytest.raises(errors.InputError, match=r"moon.*embedded or kubernetes"):
        settings.read({"ROVER_KF_ON": "moon"})
    with pytest.raises(errors.InputError, match=r"moon.*embedded or kubernetes"):
        settings.read({}).with_overrides("moon")


@pytest.mark.parametrize("account", ["rover-kf-controller", "team:", ":name", "a:b:c"])
def test_an_account_without_namespace_is_refused(account):
    """The refusal names the variable and how it is written."""
    with pytest.raises(errors.InputError, match=r"ROVER_CONTROLLER_ACCOUNT.*namespace:name"):
        settings.read({"ROVER_CONTROLLER_ACCOUNT": account})
