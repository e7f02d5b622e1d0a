# SPDX-License-Identifier: Apache-2.0
"""Whether a startup kit's certificates are valid by this machine's clock.

FLARE's client waits for ever where they are not, and says nothing.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate

CERTIFICATES = ("rootCA.pem", "client.crt", "server.crt")


def out_of_date(kit: Path) -> str:
    """What is wrong with the certificates in ``kit/startup``, in one line with what mends it; empty: nothing."""
    now = datetime.now(timezone.utc)
    for path in (kit / "startup" / name for name in CERTIFICATES):
        if path.is_file():
            found = load_pem_x509_certificate(path.read_bytes())
            first, last = found.not_valid_before_utc, found.not_valid_after_utc
            if not first <= now <= last:
                mend = "set the clock" if now < first else "set the clock, or have the hub renew it (docs/life.md)"
                return (
                    f"startup/{path.name}: expected a certificate that is valid at {now:%Y-%m-%d %H:%M} UTC, this "
                    f"machine's time, got one from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}: {mend}"
                )
    return ""
