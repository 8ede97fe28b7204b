# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP around admission.review; TLS and ports are the caller's (controller/main.py)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping

from aiohttp import web

from rover_kf import errors
from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook import admission

PATH = "/mutate"
MAX_BODY = 8 << 20
"""Bytes: an UPDATE carries the job twice, and an object may be 1.5 MiB."""

_log = logging.getLogger(__name__)


def make_app(
    settings: InjectionSettings, read_defaults: Callable[[], Mapping[str, str]]
) -> web.Application:
    """An application that answers POST /mutate.

    Args:
        settings: images and accounts of this place.
        read_defaults: policy defaults, read for each review so that an edit takes effect.
    """

    async def mutate(request: web.Request) -> web.Response:
        try:
            posted = json.loads(await request.read())
            answer = admission.review(posted, settings=settings, defaults=read_defaults())
        except (ValueError, errors.MessageError) as cause:
            _log.warning("refused a request that is no AdmissionReview: %s", cause)
            return web.json_response({"error": "MessageError", "message": str(cause)}, status=400)
        response = answer["response"]
        if not response["allowed"]:
            _log.info("refused: %s", response["status"]["message"])
        return web.json_response(answer)

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post(PATH, mutate)
    return app
