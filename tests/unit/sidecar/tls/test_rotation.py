# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whose certificates are taken and which is shown while a Secret changes, by the clock's value."""

from __future__ import annotations

import itertools

import pytest

from rover_kf.sidecar.tls import reloading
from rover_kf.sidecar.tls.certificate import Certificate
from rover_kf.sidecar.tls.reloading import KEPT_SECONDS, SPREAD_SECONDS, Rotation

DAY = 86400.0
LATEST = 120.0
"""After which a kubelet has brought the change: SPREAD_SECONDS is more."""


def certificate(*authorities: str, serial: str = "", ends: float = DAY) -> Certificate:
    """Signed by the first of them."""
    return Certificate(f"{serial} of {authorities[0]}".encode(), b"", authorities, 0.0, ends)


OLD, NEW = certificate("old"), certificate("new", ends=2 * DAY)


def takes(asking: Rotation, answering: Rotation) -> bool:
    """Whether one pod takes the certificate that the other one shows."""
    signed_by = answering.shown.chain.decode().partition(" of ")[2]
    return signed_by in asking.authorities.split("\n")


def test_a_new_certificate_of_the_same_authority_is_shown_at_once():
    """Everybody takes it already."""
    begun = reloading.start_rotation(OLD)
    renewed = certificate("old", serial="2")
    assert reloading.advance_rotation(begun, renewed, 10.0).shown is renewed


def test_a_sidecar_that_starts_shows_what_it_finds():
    """It has nothing else to show."""
    assert reloading.start_rotation(NEW).shown is NEW
    assert reloading.start_rotation(NEW).authorities == "new"


def test_a_new_authority_is_trusted_at_once_and_shown_when_all_have_had_time_to_hear_of_it():
    """Not a moment before; with the old one trusted for as long as others may show it."""
    seen = reloading.advance_rotation(reloading.start_rotation(OLD), NEW, 1000.0)
    assert (seen.shown, seen.authorities) == (OLD, "old\nnew")
    early = reloading.advance_rotation(seen, NEW, 1000.0 + SPREAD_SECONDS - 1)
    assert early.shown is OLD
    later = reloading.advance_rotation(early, NEW, 1000.0 + SPREAD_SECONDS)
    assert (later.shown, later.authorities) == (NEW, "old\nnew")
    assert reloading.advance_rotation(later, NEW, 999.0 + KEPT_SECONDS).authorities == "old\nnew"
    assert reloading.advance_rotation(later, NEW, 1000.0 + KEPT_SECONDS).authorities == "new"


def test_an_authority_that_was_known_in_time_holds_nothing_up():
    """Who puts the next one beside the present one first, as a bundle does, waits for nothing."""
    both = certificate("old", "new")
    begun = reloading.advance_rotation(reloading.start_rotation(OLD), both, 0.0)
    assert begun.shown is OLD
    moved = reloading.advance_rotation(begun, certificate("new", "old"), SPREAD_SECONDS)
    assert moved.shown.authorities == ("new", "old")


def test_a_certificate_that_has_ended_is_not_held_on_to():
    """Nobody takes it: the new one may be taken by some."""
    begun = reloading.start_rotation(certificate("old", ends=1010.0))
    seen = reloading.advance_rotation(begun, NEW, 1000.0)
    assert seen.shown.not_after == 1010.0
    assert reloading.advance_rotation(seen, NEW, 1010.0).shown is NEW


def test_what_comes_back_is_kept():
    """An authority that is mounted again in time is trusted as it was, without another wait."""
    gone = reloading.advance_rotation(
        reloading.start_rotation(certificate("old", "more")), OLD, 0.0
    )
    back = reloading.advance_rotation(
        gone, certificate("old", "more", serial="2"), KEPT_SECONDS - 1
    )
    assert back.shown.chain == b"2 of old"
    assert reloading.advance_rotation(back, OLD, KEPT_SECONDS + 1).authorities == "old\nmore"


@pytest.mark.parametrize("heard", [*itertools.product((0.0, 55.0, LATEST), repeat=2)], ids=str)
def test_running_pods_take_each_others_certificates_all_the_while(heard):
    """Whenever each of them hears of another authority, in every second from then on: the
    authority's change breaks no connection between pods that run."""
    pods = [reloading.start_rotation(OLD) for _ in heard]
    for now in range(int(KEPT_SECONDS + 2 * LATEST)):
        pods = [
            reloading.advance_rotation(pod, NEW if now >= at else OLD, float(now))
            for pod, at in zip(pods, heard, strict=True)
        ]
        for asking, answering in itertools.permutations(pods, 2):
            assert takes(asking, answering), f"second {now}"
    assert [pod.shown for pod in pods] == [NEW, NEW]
    assert not takes(reloading.start_rotation(OLD), pods[0])
