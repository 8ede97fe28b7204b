# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines of sidecar and controller: one JSON object a line, or text for people.

Each line has fields that name its job, pod and rank, where they are known, for a store of logs.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import TextIO

from rover_kf import errors
from rover_kf.api.jobs import JobKey

JSON, TEXT = "json", "text"
FORMS = (JSON, TEXT)
_RANK = re.compile(r"\brank (\d+)\b")


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object a line, with the context's fields in each.

    The others are ``time`` (RFC 3339, UTC), ``level``, ``logger`` and ``message``.
    """

    def __init__(self, context: Mapping[str, str]) -> None:
        super().__init__()
        self._context = dict(context)

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        message = record.getMessage()
        at = dt.datetime.fromtimestamp(record.created, tz=dt.timezone.utc)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            **self._context,
            **_job_of(record),
        }
        rank = _RANK.search(message)
        if rank is not None:
            line["rank"] = int(rank[1])
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A formatter for people, with the context in front of the message."""

    def __init__(self, context: Mapping[str, str]) -> None:
        known = "".join(f" {name}={value}" for name, value in context.items() if value)
        # A value with a per cent sign must not be read as a field of the format.
        super().__init__(f"%(asctime)s %(levelname)s{known.replace('%', '%%')} %(message)s")


def configure(
    form: str, level: int | str = logging.INFO, *, stream: TextIO = sys.stderr, **context: str
) -> None:
    """Configure this process's log; an empty ``form`` is JSON, and empty context is left out.

    Raises:
        InputError: there is no such form.
    """
    if form not in ("", *FORMS):
        allowed = " or ".join(FORMS)
        raise errors.InputError(f"ROVER_LOG_FORMAT is {form!r}; allowed: {allowed}")
    handler = logging.StreamHandler(stream)
    told = {name: value for name, value in context.items() if value}
    handler.setFormatter(TextFormatter(told) if form == TEXT else JsonFormatter(told))
    logging.basicConfig(level=level, handlers=[handler])


def _job_of(record: logging.LogRecord) -> dict[str, str]:
    given = record.args if isinstance(record.args, tuple) else ()
    key = next((one for one in given if isinstance(one, JobKey)), None)
    if key is None:
        return {}
    return {"job": key.name, "namespace": key.namespace, "kind": key.kind}
