# SPDX-License-Identifier: Apache-2.0
"""What a startup kit gives a server or a site: its certificate and key, and for secure sums TenSEAL's context.

``Heads`` keeps what a site knows of the audit log: the signed heads that it saw, and what it signed itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificates
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store
from nvflare.apis.fl_context import FLContext
from nvflare.lighter import utils

from fairflare.core.errors import DataError, UserError
from fairflare.core.schema import Answer, Instruction, said
from fairflare.engine.files import append_lines, private_folder
from fairflare.engine.hashes import model_hash
from fairflare.flare.paths import RUN_FOLDER
from fairflare.privacy.identity import Credentials, Identity, NoIdentity
from fairflare.privacy.schemes import HE, SERVER_CONTEXT, SITE_CONTEXT
from fairflare.privacy.statements import LAST, SIGNED, Sealed, answer_bytes, head_bytes, numbers_hash

ROOT = "rootCA.pem"
OF_CLIENT, OF_SERVER = ("client.crt", "client.key"), ("server.crt", "server.key")
"""A kit's own certificate and private key."""
CLIENT, SERVER = "fed_client.json", "fed_server.json"
HEADS = ".heads.jsonl"
"""Ending of a site's file of ``Heads``."""


def site_credentials(fl_ctx: FLContext) -> Credentials:
    """Those of the site that runs this job; without a kit, as in the simulator, it takes everyone's word."""
    kit = _kit(fl_ctx)
    return Credentials(_identity(kit, CLIENT, OF_CLIENT), lambda: _context(kit, SITE_CONTEXT))


def server_credentials(fl_ctx: FLContext) -> Credentials:
    """The server's, which checks sites' words and signs none."""
    kit = _kit(fl_ctx)
    return Credentials(_identity(kit, SERVER), lambda: _context(kit, SERVER_CONTEXT))


def log_signer(fl_ctx: FLContext, own: tuple[str, str]) -> Certificate | None:
    """Who signs the audit log here: the server, or a site (``own``: the kit's files); None without a kit."""
    kit = _kit(fl_ctx)
    return Certificate(kit, own) if all((kit / name).is_file() for name in (ROOT, *own)) else None


def _identity(kit: Path, settings: str, own: tuple[str, str] | None = None) -> Identity:
    if not (kit / ROOT).is_file() or (own and not (kit / own[1]).is_file()):
        if (kit / settings).is_file():
            raise UserError(f"secure_sum: the startup kit lacks {ROOT}" + (f" or {own[1]}" if own else ""))
        return NoIdentity()
    return Certificate(kit, own)


class Certificate:
    """An identity of the federation's certificates: who holds the key of a site's certificate is that site.

    Args:
        kit: folder of a startup kit with the federation's root certificate.
        own: names of its certificate and private key, to sign with.
    """

    def __init__(self, kit: Path, own: tuple[str, str] | None = None) -> None:
        self._root = utils.load_crt(kit / ROOT)
        self._own = ((kit / own[0]).read_bytes(), utils.load_private_key_file(kit / own[1])) if own else None
        found: set[str] = set()
        for name in (CLIENT, SERVER):
            if (kit / name).is_file():
                for server in json.loads((kit / name).read_text()).get("servers", []):
                    found |= {str(server.get(key, "")) for key in ("name", "identity")}
        self._servers = found

    def sign(self, content: bytes) -> dict[str, str]:
        """{"certificate": PEM, "signature": base64}."""
        if self._own is None:
            return {}
        certificate, key = self._own
        return {"certificate": certificate.decode("ascii"), "signature": utils.sign_content(content, key)}

    def vouches(self, site: str, content: bytes, proof: Sealed) -> bool:
        """Whether the root vouches for the certificate today, it is ``site``'s, and its key signed ``content``.

        The server and its administrators have certificates of the same root, and are no sites.
        """
        return self._signer(content, proof) == site and site not in self._servers

    def is_server(self, content: bytes, proof: Sealed) -> bool:
        """The same of the federation's server."""
        return self._signer(content, proof) in self._servers

    def _signer(self, content: bytes, proof: Sealed) -> str | None:
        """Whose key signed ``content``; None for nobody's of this federation, and for an administrator's."""
        found = signer_of(content, proof, self._root)
        return None if found is None or found[1] else found[0]


class Heads:
    """One site's file of one federation, made with the first head; nothing is ever taken out of it.

    ``identity``: the site's own certificate and key, and the root.
    """

    def __init__(self, path: Path, site: str, identity: Certificate) -> None:
        self._path, self._site, self._identity = path, site, identity
        self._asked: tuple[str, int, str] | None = None

    def receive(self, instruction: Instruction) -> None:
        """Keep the head that came with a question; DataError "head" where the federation's server has not signed it."""
        head: Mapping[str, Any] = instruction.log
        self._asked = None
        if not head:
            return
        try:
            plain = {name: str(head[name]) for name in ("log", "hash", "certificate", "signature")}
            kept = {**plain, "seq": int(head["seq"])}
            signed = self._identity.is_server(head_bytes(kept), plain)
        except (KeyError, TypeError, ValueError):
            signed = False
        if not signed:
            raise DataError("head", "the head of the log is not signed by this federation's server")
        task = LAST if head.get(LAST) else instruction.task
        self._append({"head": kept, "task": task, "round": instruction.round.number})
        if task in (*SIGNED, LAST):
            self._asked = task, instruction.round.number, plain["hash"]

    def sign(self, answer: Answer) -> dict[str, str]:
        """What goes with the answer, as it leaves, to the question received last; nothing where that had no head."""
        if self._asked is None:
            return {}
        told = said(answer)
        update = "" if answer.update is None else model_hash(answer.update)
        numbers = numbers_hash(told)
        proof = self._identity.sign(answer_bytes(self._site, *self._asked, update, numbers))
        task, round, head = self._asked
        about = {"site": self._site, "task": task, "round": round, "head": head, "update": update, "numbers": numbers}
        self._append({"signed": {**about, **proof}, "told": told})
        return {"numbers": numbers, **proof}

    def _append(self, line: Mapping[str, Any]) -> None:
        private_folder(self._path.parent)
        append_lines(self._path, [line])


def signer_of(content: bytes, proof: Sealed, root: Any) -> tuple[str, str] | None:
    """Name and role (empty: a site, or the server) in the certificate whose key signed ``content``.

    None where no key did for whose certificate the ``root`` (an x509 certificate; None: any) vouches today.
    """
    try:
        leaf, *between = load_pem_x509_certificates(proof["certificate"].encode("ascii"))
        if root is not None:  # purposes of a leaf are FLARE's own, in its name
            policy = (
                PolicyBuilder()
                .store(Store([root]))
                .extension_policies(
                    ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ExtensionPolicy.permit_all()
                )
            )
            policy.build_client_verifier().verify(leaf, between)
        utils.verify_content(content, proof["signature"], leaf.public_key())
        roles = [str(one.value) for one in leaf.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)]
        (name,) = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(name.value), ", ".join(roles)
    except Exception:  # whatever is wrong with a proof, it proves nothing
        return None


def _kit(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir())


def _context(kit: Path, name: str) -> bytes:
    named = os.environ.get(RUN_FOLDER)
    path = (Path(named) / HE if named else kit) / name
    if not path.is_file():
        raise UserError(f"secure_sum=ckks: the startup kit has no {name}; provision with FLARE's HEBuilder")
    return path.read_bytes()
