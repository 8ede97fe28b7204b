# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One row of the catalogue: which evidence of an end it matches, and the verdict that follows."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingError:
    """The exception that ended a training process, as it wrote it down itself."""

    type: str
    bases: tuple[str, ...]
    """Names of the classes that it derives from, itself first."""
    message: str
    traceback: str
    raised_at: float = 0.0
    """Unix seconds."""
    causes: tuple[str, ...] = ()
    """The same names of the exceptions that led to it (``raise … from``, or while handling)."""
    chain: tuple[str, ...] = ()
    """What those said, as ``Type: message``."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExitEvidence:
    """A launcher fills in the first part, a reconciler the second."""

    exit_code: int | None = None
    """Of a training process or of a container; negative: the signal's number."""
    oom_kills: int = 0
    """By how much the control group's counter grew while the process died."""
    error: TrainingError | None = None
    tail: tuple[str, ...] = ()
    """What the process wrote on stderr last, by lines."""

    container_reason: str = ""
    """Why the kubelet says a container has ended: OOMKilled, Error, …"""
    pod_reasons: tuple[str, ...] = ()
    """Why a pod has ended or will: its status' reason and that of its DisruptionTarget."""
    message: str = ""
    """What Kubernetes says beside the reason."""


PROCESS, CONTAINER, POD, NODE, JOB = "process", "container", "pod", "node", "job"
"""Scopes, narrowest first: how far the damage reaches."""
SCOPES = (PROCESS, CONTAINER, POD, NODE, JOB)

RESTART = "restart"
"""Fork the training processes anew, in the same container."""
RAISE_MEMORY = "raise_memory"
"""The same, and more memory is needed for it to last."""
RESTART_CONTAINER = "restart_container"
REPLACE_POD = "replace_pod"
REPLACE_NODE = "replace_node"
"""Another pod, on another node."""
BEYOND_CONTAINER = frozenset({RESTART_CONTAINER, REPLACE_POD, REPLACE_NODE})
"""What cannot be done from inside the container: the launcher ends it with EXIT_RETRY."""
FAIL_JOB = "fail_job"
"""No restart can help."""
NEEDS_OTHER_WORLD_SIZE = "other_world"
"""Only a world of another size can go on: no restart helps while all pods are there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A row; it matches if everything holds that it asks for."""

    kind: str
    message: str
    """One sentence for people: what happened, and what to do if it comes again."""
    scope: str = PROCESS
    action: str = RESTART
    variant: str = ""
    """Which it is of several rules of its kind."""
    source: str = ""
    """The page that its text was taken from, where not all of it was seen."""
    needs: str = ""
    """What would be needed to bring it about in a test; empty: a test does."""
    codes: frozenset[int] = frozenset()
    """Exit codes; negative: the signal's number."""
    errors: frozenset[str] = frozenset()
    """Names of exception classes, or of their bases."""
    causes: frozenset[str] = frozenset()
    """The same, of the exception or of any that led to it."""
    text: str = ""
    """Regular expression for the exception's or Kubernetes' message, else for the end of stderr."""
    logged: str = ""
    """The same, in stderr alone: of what a library logs and leaves out of its exception."""
    reasons: frozenset[str] = frozenset()
    """What Kubernetes calls the end of a container or pod."""
    oom_killed: bool = False
    """Whether the kernel killed for memory meanwhile."""
    consumes_budget: bool = True
    """Whether it spends the budget of restarts."""
    consequence: bool = False
    """Whether the end of another process explains it."""
    permanent_if_repeated: bool = False
    """Whether the same error in the same place again shows that no restart helps."""

    def matches(self, evidence: ExitEvidence) -> bool:
        """Whether the evidence is of this kind."""
        error = evidence.error
        classes = {error.type, *error.bases} if error else set[str]()
        causes = {*classes, *error.causes} if error else classes
        reasons = {evidence.container_reason, *evidence.pod_reasons}
        return (
            (not self.codes or evidence.exit_code in self.codes)
            and (not self.errors or not self.errors.isdisjoint(classes))
            and (not self.causes or not self.causes.isdisjoint(causes))
            and (not (self.text or self.logged) or self.matching_line(evidence) != "")
            and (not self.reasons or not self.reasons.isdisjoint(reasons))
            and (not self.oom_killed or evidence.oom_kills > 0)
        )

    def matching_line(self, evidence: ExitEvidence) -> str:
        """The first line that the text is found in; empty if there is none."""
        pattern, lines = self.text, _messages(evidence)
        if self.logged:
            pattern, lines = self.logged, evidence.tail
        wanted = re.compile(pattern, re.IGNORECASE)
        return next((line for line in lines if pattern and wanted.search(line)), "")


def _messages(evidence: ExitEvidence) -> tuple[str, ...]:
    # An exception's own words: what stood on stderr before may be of something it survived.
    if evidence.error is not None:
        error = evidence.error
        return (f"{error.type}: {error.message}", *error.chain)
    return (evidence.message,) if evidence.message else evidence.tail
