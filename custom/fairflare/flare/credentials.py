# SPDX-License-Identifier: Apache-2.0
"""What a startup kit gives a server or a site for secure sums: its certificate, and TenSEAL's context if it has one."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cryptography.x509.oid import NameOID
from nvflare.apis.fl_context import FLContext
from nvflare.lighter.utils import (
    load_crt,
    load_crt_chain_bytes,
    load_private_key_file,
    sign_content,
    verify_cert_chain,
    verify_content,
)
from nvflare.private.fed.utils.identity_utils import get_cn_from_cert

from fairflare.core.errors import UserError
from fairflare.flare.paths import RUN_FOLDER
from fairflare.flare.run_files import HE, SERVER_CONTEXT, SITE_CONTEXT
from fairflare.privacy.secure_sum.protocol import Identity, NoIdentity, Sealed
from fairflare.privacy.secure_sum.schemes import Credentials

ROOT, CERTIFICATE, KEY = "rootCA.pem", "client.crt", "client.key"
CLIENT, SERVER = "fed_client.json", "fed_server.json"


def site_credentials(fl_ctx: FLContext) -> Credentials:
    """Those of the site that runs this job; without a kit, as in the simulator, it takes everyone's word."""
    kit = _kit(fl_ctx)
    return Credentials(_identity(kit, CLIENT, signs=True), lambda: _context(kit, SITE_CONTEXT))


def server_credentials(fl_ctx: FLContext) -> Credentials:
    """The server's, which checks sites' words and signs none."""
    kit = _kit(fl_ctx)
    return Credentials(_identity(kit, SERVER, signs=False), lambda: _context(kit, SERVER_CONTEXT))


def _identity(kit: Path, settings: str, *, signs: bool) -> Identity:
    if not (kit / ROOT).is_file() or (signs and not (kit / KEY).is_file()):
        if (kit / settings).is_file():
            raise UserError(f"secure_sum: the startup kit lacks {ROOT} or {KEY}")
        return NoIdentity()
    return Certificate(kit, signs=signs)


class Certificate:
    """An identity of the federation's certificates: who holds the key of a site's certificate is that site.

    Args:
        kit: folder of a startup kit with the federation's root certificate.
        signs: whether the kit is a site's, whose own certificate and key are there.
    """

    def __init__(self, kit: Path, *, signs: bool = False) -> None:
        self._root = load_crt(kit / ROOT)
        self._own = ((kit / CERTIFICATE).read_bytes(), load_private_key_file(kit / KEY)) if signs else None
        self._servers = _server_names(kit)

    def sign(self, content: bytes) -> dict[str, str]:
        """{"certificate": PEM, "signature": base64}."""
        if self._own is None:
            return {}
        certificate, key = self._own
        return {"certificate": certificate.decode("ascii"), "signature": sign_content(content, key)}

    def vouches(self, site: str, content: bytes, proof: Sealed) -> bool:
        """Whether the root vouches for the certificate today, it is ``site``'s, and its key signed ``content``.

        The server and its administrators have certificates of the same root, and are no sites.
        """
        try:
            leaf, *between = load_crt_chain_bytes(proof["certificate"].encode("ascii"))
            verify_cert_chain(leaf, between, self._root)
            verify_content(content, proof["signature"], leaf.public_key())
            has_role = leaf.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
            return get_cn_from_cert(leaf) == site and site not in self._servers and not has_role
        except Exception:  # whatever is wrong with a proof, it proves nothing
            return False


def _server_names(kit: Path) -> set[str]:
    """Names of the federation's servers as this kit knows them."""
    found: set[str] = set()
    for name in (CLIENT, SERVER):
        if (kit / name).is_file():
            for server in json.loads((kit / name).read_text()).get("servers", []):
                found |= {str(server.get(key, "")) for key in ("name", "identity")}
    return found


def _kit(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir())


def _context(kit: Path, name: str) -> bytes:
    named = os.environ.get(RUN_FOLDER)
    path = (Path(named) / HE if named else kit) / name
    if not path.is_file():
        raise UserError(f"secure_sum=ckks: the startup kit has no {name}; provision with FLARE's HEBuilder")
    return path.read_bytes()
