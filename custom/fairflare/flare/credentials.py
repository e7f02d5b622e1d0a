# SPDX-License-Identifier: Apache-2.0
"""What a startup kit gives a server or a site for secure sums: its certificate, and TenSEAL's context if it has one."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography import x509
from nvflare.apis.fl_context import FLContext
from nvflare.lighter.utils import (
    load_crt,
    load_crt_chain_bytes,
    load_private_key_file,
    sign_content,
    verify_cert,
    verify_cert_chain,
    verify_content,
)
from nvflare.private.fed.utils.identity_utils import get_cn_from_cert

from fairflare.errors import UserError
from fairflare.flare.places import RUN_FOLDER
from fairflare.privacy.schemes import Credentials
from fairflare.privacy.sums import NoIdentity, Sealed

ROOT, CERTIFICATE, KEY = "rootCA.pem", "client.crt", "client.key"
SITE_CONTEXT, SERVER_CONTEXT = "client_context.tenseal", "server_context.tenseal"
"""Where FLARE's ``HEBuilder`` puts them."""
HE = "he"
"""Folder of a simulated run with contexts of its own."""


def site_credentials(fl_ctx: FLContext) -> Credentials:
    """Those of the site that runs this job; without certificates, as in the simulator, it takes everyone's word."""
    kit = _kit(fl_ctx)
    signed = (kit / ROOT).is_file() and (kit / KEY).is_file()
    return Credentials(Certificate(kit, signs=True) if signed else NoIdentity(), lambda: _context(kit, SITE_CONTEXT))


def server_credentials(fl_ctx: FLContext) -> Credentials:
    """The server's, which checks sites' words and signs none."""
    kit = _kit(fl_ctx)
    checked = (kit / ROOT).is_file()
    return Credentials(Certificate(kit) if checked else NoIdentity(), lambda: _context(kit, SERVER_CONTEXT))


class Certificate:
    """An identity of the federation's certificates: who holds the key of a site's certificate is that site.

    Args:
        kit: folder of a startup kit with the federation's root certificate.
        signs: whether the kit is a site's, whose own certificate and key are there.
    """

    def __init__(self, kit: Path, *, signs: bool = False) -> None:
        self._root = load_crt(kit / ROOT)
        self._own = ((kit / CERTIFICATE).read_bytes(), load_private_key_file(kit / KEY)) if signs else None

    def sign(self, content: bytes) -> dict[str, str]:
        """{"certificate": PEM, "signature": base64}."""
        if self._own is None:
            return {}
        certificate, key = self._own
        return {"certificate": certificate.decode("ascii"), "signature": sign_content(content, key)}

    def vouches(self, site: str, content: bytes, proof: Sealed) -> bool:
        """Whether the root vouches for the certificate, it is ``site``'s, and its key signed ``content``."""
        try:
            leaf, *between = load_crt_chain_bytes(proof["certificate"].encode("ascii"))
            self._check_chain(leaf, between)
            verify_content(content, proof["signature"], leaf.public_key())
            return get_cn_from_cert(leaf) == site
        except Exception:  # whatever is wrong with a proof, it proves nothing
            return False

    def _check_chain(self, leaf: x509.Certificate, between: list[x509.Certificate]) -> None:
        if between:
            verify_cert_chain(leaf, between, self._root)
        else:
            verify_cert(leaf, self._root.public_key())


def make_contexts(folder: Path) -> None:
    """New contexts for a simulated run in ``folder``."""
    from fairflare.privacy.ckks import new_contexts

    (folder / HE).mkdir(exist_ok=True)
    for name, content in zip((SITE_CONTEXT, SERVER_CONTEXT), new_contexts(), strict=True):
        (folder / HE / name).write_bytes(content)


def _kit(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir())


def _context(kit: Path, name: str) -> bytes:
    named = os.environ.get(RUN_FOLDER)
    path = (Path(named) / HE if named else kit) / name
    if not path.is_file():
        raise UserError(f"secure_sum=ckks: the startup kit has no {name}; provision with FLARE's HEBuilder")
    return path.read_bytes()
