# SPDX-License-Identifier: Apache-2.0
"""Startup kits of a federation as FLARE provisions them: root, certificates and keys."""

import datetime
import json

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def named(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificate(subject, key, issuer, signer, days=(-1, 1), role=None, ca=False):
    now = datetime.datetime.now(datetime.timezone.utc)
    name = named(subject)
    if role:
        name = x509.Name([*name, x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role)])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(named(issuer))
    built = built.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if ca:
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        usage = dict.fromkeys(USAGES, False) | {"key_cert_sign": True, "digital_signature": True}
        built = built.add_extension(x509.KeyUsage(**usage), critical=True)
    built = built.public_key(key.public_key()).serial_number(x509.random_serial_number())
    first, last = (now + datetime.timedelta(days=n) for n in days)
    built = built.not_valid_before(first).not_valid_after(last)
    made = built.sign(signer, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def new_key():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def write_kit(folder, site, root, root_pem, own="client", **certified):
    """A startup kit with the certificate and key of a site, or of the server: ``own``."""
    folder.mkdir()
    key = new_key()
    (folder / "rootCA.pem").write_bytes(root_pem)
    (folder / "fed_client.json").write_text(json.dumps({"servers": [{"name": "hub", "identity": "hub.org"}]}))
    (folder / f"{own}.crt").write_bytes(certificate(site, key, "root", root, **certified))
    (folder / f"{own}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return folder
