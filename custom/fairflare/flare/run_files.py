# SPDX-License-Identifier: Apache-2.0
"""Files that FLARE's processes leave or look for beside the run's own; importing this imports nothing of FLARE."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

LOCAL_LOG = "fairflare_errors.txt"
LOCAL_FINDINGS = "fairflare_preflight.txt"
"""Files of the site's own, in the job's folder there."""
SITE_CONTEXT, SERVER_CONTEXT = "client_context.tenseal", "server_context.tenseal"
"""Where FLARE's ``HEBuilder`` puts them."""
HE = "he"
"""Folder of a simulated run with contexts of its own."""


def make_contexts(folder: Path) -> None:
    from fairflare.privacy.secure_sum.schemes import CHECKED

    (folder / HE).mkdir(exist_ok=True)
    for name, content in zip((SITE_CONTEXT, SERVER_CONTEXT), import_module(CHECKED).new_contexts(), strict=True):
        (folder / HE / name).write_bytes(content)
