# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How sidecars are spoken to by TLS 1.3: one name for all of a namespace, no client certificates.

Pods come and go, and are called by addresses as well as by names: a certificate that named them
could not be made before they are there. So all sidecars of a namespace have the same certificate,
and it names the namespace. Who asks shows a token, as without TLS.
"""

from __future__ import annotations

import ssl


def server_name(namespace: str) -> str:
    """What a sidecar's certificate has to name, whatever address it is reached at."""
    return f"rover-kf.{namespace}.svc"


def verifying_context(authorities: str) -> ssl.SSLContext:
    """For who asks: takes certificates of these authorities alone.

    Args:
        authorities: PEM of one certificate or several; an authority need not be a root.

    Raises:
        ssl.SSLError: it is none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=authorities)
    return context


def unverified_context() -> ssl.SSLContext:
    """For who asks for what is open to all, sends nothing of its own, and knows no authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
