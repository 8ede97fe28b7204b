# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An install for one namespace alone: no webhook, so jobs are patched where they are submitted."""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf.doctor.controller_checks import ControllerState
from rover_kf.doctor.finding import Finding
from rover_kf.doctor.webhook_checks import CHECK, WebhookState
from rover_kf.injection.inject import is_injected

ACCOUNT = "controller-account"


def check(observed: ControllerState, admission: WebhookState, trusted: str) -> Iterator[Finding]:
    """That nothing injects, as is right here; and whether jobs take this controller's word.

    Args:
        observed: the namespace's own controller.
        admission: what is to be seen of a webhook; there should be none.
        trusted: account that jobs patched by the caller's hand take the word of.
    """
    yield _check_no_webhook(observed, admission)
    yield _check_account(observed, trusted)


def _check_no_webhook(observed: ControllerState, admission: WebhookState) -> Finding:
    injected = admission.labelled_dry_run.value is not None and is_injected(
        admission.labelled_dry_run.value
    )
    if injected or admission.configuration.value is not None:
        what = (
            f"there is a webhook for the whole cluster (in {admission.namespace}) beside the "
            f"controller of {observed.namespace}: two controllers would look after the same jobs"
        )
        mend = (
            "keep one of them: kubectl delete -k manifests/overlays/namespaced takes the "
            "namespace's own away"
        )
        return Finding(CHECK, "broken" if injected else "warning", what, mend)
    what = (
        f"none, as is right for the jobs of {observed.namespace} alone: rover-kf submit, rover-kf "
        "patch, the SDK and pipelines' steps patch them; kubectl apply of a plain file does not"
    )
    return Finding(CHECK, "good", what)


def _check_account(observed: ControllerState, trusted: str) -> Finding:
    if trusted == observed.account:
        return Finding(ACCOUNT, "good", f"jobs that you patch take the word of {trusted}")
    other = f"only of {trusted}" if trusted else "of no controller"
    what = (
        f"jobs that you patch would take the word {other}, not of {observed.account}: what it "
        "tells them is refused"
    )
    mend = (
        f"export ROVER_CONTROLLER_ACCOUNT={observed.account} where jobs are submitted, also in "
        "pipelines' steps"
    )
    return Finding(ACCOUNT, "warning", what, mend)
