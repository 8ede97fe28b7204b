# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The versions that are claimed are the ones that the tests can be run on."""

from __future__ import annotations

import pathlib
import re

import pytest
from testcluster import binaries, releases, settings
from testcluster.errors import ClusterError

ROOT = pathlib.Path(__file__).parents[3]
LISTS = sorted((ROOT / "tests" / "compat" / "packages").glob("torch-*.txt"))


def test_a_release_is_found_by_its_minor_version(monkeypatch):
    """Without a wish it is the newest; ROVER_KF_TEST_KUBERNETES names another."""
    monkeypatch.delenv("ROVER_KF_TEST_KUBERNETES", raising=False)
    assert releases.find(settings.kubernetes()) == releases.RELEASES[0]
    for release in releases.RELEASES:
        monkeypatch.setenv("ROVER_KF_TEST_KUBERNETES", release.minor)
        assert releases.find(settings.kubernetes()) == release
        assert release.version.startswith(f"v{release.minor}.")


@pytest.mark.parametrize("wish", ["1.2", "1.34.4", "v1.34", "newest"])
def test_an_unknown_version_is_refused(wish):
    """The refusal names the variable, its value and what is allowed."""
    with pytest.raises(ClusterError, match=rf"ROVER_KF_TEST_KUBERNETES is '{wish}'.*1\.34, 1\.29"):
        releases.find(wish)


@pytest.mark.parametrize("release", releases.RELEASES, ids=lambda release: release.minor)
def test_a_go_module_is_of_its_release(release):
    """Kubernetes and all that it is staged from are of one version, and the binary says it."""
    (kubernetes, *_) = binaries.modules(release)
    text = (kubernetes.source / "go.mod").read_text()
    assert f"require k8s.io/kubernetes {release.version}\n" in text
    staged = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (\S+)$", text, re.MULTILINE)
    assert len(staged) >= 30
    staging = release.version.replace("v1.", "v0.")
    assert {(old == new, version) for old, new, version in staged} == {(True, staging)}
    assert f"gitVersion={release.version}" in " ".join(kubernetes.flags)


def test_releases_share_nothing_that_could_be_mistaken():
    """Each has a folder of its own, so that one's binaries are never found for another."""
    folders = {binaries.modules(release)[0].name for release in releases.RELEASES}
    assert len(folders) == len(releases.RELEASES)


def _torch(file: pathlib.Path) -> str:
    return re.search(r"^torch==(\d+\.\d+)", file.read_text(), re.MULTILINE)[1]


def test_the_oldest_torch_is_tested():
    """The least torch of pyproject.toml has a list of packages; three minors are tested in all."""
    (least,) = set(re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text()))
    tested = {_torch(file) for file in [*LISTS, ROOT / ".ci" / "requirements.txt"]}
    print(f"torch {', '.join(sorted(tested))}")
    assert least in tested
    assert len(tested) >= 3


def test_the_page_of_versions_names_what_is_tested():
    """docs/versions.md has every version that the tests can be run on."""
    page = (ROOT / "docs" / "versions.md").read_text()
    versions = [release.version.removeprefix("v") for release in releases.RELEASES]
    versions += [file.stem.removeprefix("torch-") for file in LISTS]
    versions.append(binaries.TRAINING_OPERATOR.removeprefix("v"))
    assert [version for version in versions if version not in page] == []
