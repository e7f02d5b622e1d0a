# SPDX-License-Identifier: Apache-2.0
"""Checks an audit log for somebody who trusts nobody: its chain, who signed what, and what a site kept of it.

    python -m fairflare.privacy.log_verifier RUN [--root rootCA.pem] [--heads SITE.heads.jsonl ...]

RUN is a run's folder or its audit.jsonl. Neither torch nor FLARE nor the engine is imported: the rules stand here once
more, to be read. The log's files are in ``log_files``, what a signature binds in ``statements``; what cannot be found,
in docs/audit-log.md.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store

from fairflare.privacy.log_files import Wrong, chained
from fairflare.privacy.statements import answer_bytes, head_bytes, is_told, numbers_hash, within

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"}
TYPES |= {f"I{size}": f"int{size}" for size in (8, 16, 32, 64)}
MODEL = "model.safetensors"
KEPT = ("seq", "time", "event", "round", "hash", "head", "model_sha256", "config_json_sha256", "files")
Entry = dict[str, Any]


@dataclass
class Verified:
    """What does not hold (empty: all does), party -> what it signed, what nobody did, and how far heads reach."""

    problem: str = ""
    vouched: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    covered: int = 0

    def lines(self) -> list[str]:
        """For people."""
        said = [f"{party} vouches for {what}" for party, what in self.vouched.items()] + self.remarks
        return [f"WRONG: {self.problem}"] if self.problem else said


def check(run: Path, root: Path | None = None, heads: Sequence[Path] = ()) -> Verified:
    """Check a folder, or a log alone, by the project's root (None: names are taken as they are) and sites' files."""
    found = Verified()
    try:
        log = Log(run / "audit.jsonl" if run.is_dir() else run)
        entries, signers = log.brief, Signers(log, root.read_bytes() if root else None)
        _check_signatures(log, signers, found, signed=bool(heads) or any("head" in entry for entry in entries))
        for path in heads:
            _check_kept(path, log, signers, found)
        if run.is_dir():
            _check_files(run, entries, found)
        found.vouched |= {f"server {server}": _named(entries[: found.covered]) for server in signers.servers}
        if rest := [f"{e['seq']} ({e['event']})" for e in entries[found.covered :] if e["event"] != "countersigned"]:
            found.remarks.append(f"nobody vouches for {'entry ' + ', '.join(rest) if found.covered else 'this log'}")
    except Wrong as wrong:
        found.problem = str(wrong)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        found.problem = f"a file does not have the form that a run gives it ({type(error).__name__}: {error})"[:200]
    return found


class Log:
    """The entries of an unbroken chain, each time from the disk, one by one; ``brief``: ``KEPT`` of each of them."""

    def __init__(self, path: Path) -> None:
        self._path, self.brief, self.certificates, self.sites = path, list[Entry](), dict[str, Any](), set[str]()
        for entry in self:
            self.brief.append({key: entry[key] for key in KEPT if key in entry})
            new = ((key, pem) for sha256, pem in entry.get("certificates", {}).items() for key in (sha256, pem))
            self.certificates = {key: (pem, entry["time"]) for key, pem in new} | self.certificates
            self.sites |= {site for key in ("sites", "accepted", "preflight") for site in entry.get(key, ())}
        if not self.brief:
            raise Wrong("the log has no entry")

    def __iter__(self) -> Iterator[Entry]:
        return chained(self._path)


class Signers:
    """Whose key signed what: certificates of the log, when each came, and the root that vouches."""

    def __init__(self, log: Log, root: bytes | None) -> None:
        self._entries, self._root = log.brief, x509.load_pem_x509_certificate(root) if root else None
        self._known, self._sites = log.certificates, log.sites
        self.servers: set[str] = set()

    def name(self, content: bytes, proof: Mapping[str, Any]) -> str:
        """The name in the certificate whose key signed ``content``; raises Wrong where none of the root's did."""
        try:
            pem, seen = self._known.get(proof["certificate"], (proof["certificate"], self._entries[-1]["time"]))
            leaf, *between = x509.load_pem_x509_certificates(pem.encode())
            padded = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)
            key: Any = leaf.public_key()
            key.verify(base64.b64decode(proof["signature"], validate=True), content, padded, hashes.SHA256())
            if self._root is not None:
                rules = PolicyBuilder().store(Store([self._root])).time(datetime.fromisoformat(seen))  # expired since?
                known = {"ca_policy": ExtensionPolicy.webpki_defaults_ca(), "ee_policy": ExtensionPolicy.permit_all()}
                rules.extension_policies(**known).build_client_verifier().verify(leaf, between)
            if leaf.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME):
                raise ValueError("an administrator's")
            return str(leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        except Exception as error:  # whatever is wrong with a proof, it proves nothing
            raise Wrong(f"a signature, or its certificate, does not hold ({type(error).__name__})") from None

    def check_head(self, head: Mapping[str, Any], before: int, where: str) -> None:
        """Raise Wrong unless the server signed ``head``, and one of the first ``before`` entries has it."""
        self.servers.add(self.name(head_bytes(head), head))
        if len(self.servers) > 1 or self.servers & self._sites:
            raise Wrong(f"{where}: a head is signed by {' and '.join(sorted(self.servers))}, not by the server alone")
        place = head["seq"]
        if head["log"] != self._entries[0]["hash"] or not 0 <= place < before:
            raise Wrong(f"{where}: has the head of entry {place} of another log, or of a longer one: it was cut")
        if self._entries[place]["hash"] != head["hash"]:
            raise Wrong(f"{where}: entry {place} is not the one that was signed: the log was changed, or told twice")

    def check_answer(self, site: str, one: Mapping[str, Any], head: str, where: str) -> None:
        """Raise Wrong unless ``site`` signed ``one`` and the head."""
        if self.name(answer_bytes(site, one["task"], one["round"], head, one["update"], one["numbers"]), one) != site:
            raise Wrong(f"{where}: what is said to be of {site} is signed by another key")


def _check_signatures(log: Log, signers: Signers, found: Verified, *, signed: bool) -> None:
    """Heads and answers in the log; in a signed one none may be missing of what was accepted."""
    since, own, seen = 0, dict[str, list[Any]](), dict[str, int]()
    for entry in log:
        number, event, answers = entry["seq"], entry["event"], entry.get("signed", {})
        where, kind = f"entry {number} ({event})", {"round": "accepted", "evaluation": "sites"}.get(event, "")
        if "head" in entry:
            signers.check_head(entry["head"], number, where)
            if entry["head"]["seq"] < since:
                raise Wrong(f"{where}: its head is older than the round before it")
            found.covered = max(found.covered, entry["head"]["seq"] + 1)
        for site, one in answers.items():
            signers.check_answer(site, one, entry["head"]["hash"], where)
            seen[site] = max(seen.get(site, 0), entry["head"]["seq"] + 1)
        for site in entry.get(kind, ()) if signed else ():
            one = answers.get(site, {})
            if not (one.get("update") and one["round"] == entry["round"] if event == "round" else one):
                raise Wrong(f"{where}: {site} was accepted without its signature")
            own.setdefault(site, []).append(one["round"] if event == "round" else event)
        since = number if event in ("start", "segment", "resume", "round") else since
    for site, last in sorted(seen.items()):
        rounds = {one for one in own.get(site, ()) if isinstance(one, int)}
        ends = (n for n in sorted(rounds) if not {n - 1, n + 1} <= rounds)
        spans = "".join(f"{' to' if n - 1 in rounds else ','} {n}" for n in ends).removeprefix(",")
        told = [f"updates{spans}"] * bool(rounds) + [str(one) for one in own.get(site, ()) if one not in rounds]
        found.vouched[f"site {site}"] = f"its own: {', '.join(told)}; it has seen {_named(log.brief[:last])}"


def _named(entries: Sequence[Entry]) -> str:
    """The entries of a log's beginning, in words."""
    last = max((entry["round"] for entry in entries if entry["event"] == "round"), default=0)
    parts = [f"rounds to {last}", *(e["event"] for e in entries if e["event"] in ("evaluation", "finish", "report"))]
    return f"entries 0 to {len(entries) - 1} ({', '.join(parts)})"


def _check_kept(path: Path, log: Log, signers: Signers, found: Verified) -> None:
    """A site's own file against the log: the heads that it saw, its updates, and its numbers."""
    name, lines = path.name, [json.loads(line) for line in path.read_bytes().splitlines()]
    for head in (line["head"] for line in lines if "head" in line):
        signers.check_head(head, len(log.brief), name)
        found.covered = max(found.covered, head["seq"] + 1)
    mine = [{**line["signed"], "told": line["told"]} for line in lines if "head" not in line]
    site = mine[0]["site"] if mine else name
    for one in mine:
        signers.check_answer(site, one, one["head"], name)
        if numbers_hash(one["told"]) != one["numbers"]:
            raise Wrong(f"{name}: its numbers are not those that the site signed")
    sent, logged = {(one["round"], one["update"]) for one in mine if one["update"]}, set[tuple[int, str]]()
    refused = dict[int, list[str]]()
    for entry in log:
        own, where = entry.get("signed", {}).get(site, {}), f"{name}: entry {entry['seq']} ({entry['event']})"
        if "round" in entry and "rejected" in entry:
            refused.setdefault(entry["round"], []).extend(
                one["code"] for s, one in entry["rejected"].items() if s == site
            )
        logged |= {(own["round"], own["update"])} if own.get("update") else set()
        if not logged <= sent:
            raise Wrong(f"{where}: an update that is not in the site's own file")
        if entry["event"] == "round" and site in entry["accepted"]:
            told = [one["told"] for one in mine if one["round"] == entry["round"] and one["task"] != "evaluate"]
            if not within(entry["accepted"][site], told):
                raise Wrong(f"{where}: other numbers of {site} than it sent")
        if entry["event"] in ("evaluation", "best") and site in entry["sites"]:
            sent_of = [one["told"] for one in mine if one["task"] == "evaluate"]
            if not any(is_told(entry["sites"][site], one, other) for one in sent_of for other in sent_of):
                raise Wrong(f"{where}: another evaluation of {site} than it sent")
    for number in sorted({number for number, _ in sent} - {number for number, _ in logged}):
        why = refused.get(number, [])
        if number in refused and not why:
            raise Wrong(f"{name}: round {number}: the log lacks the update of {site} and does not say why")
        found.remarks.append(f"round {number}: the log lacks what {site} sent: {', '.join(why) or 'cut short'}")


def _check_files(folder: Path, entries: Sequence[Entry], found: Verified) -> None:
    """Configuration, reports and model beside the log are those that the signed part of it names."""
    order = [*reversed(entries[: found.covered]), *reversed(entries)]
    newest = {"report": {}, "finish": {}, "segment": entries[0]} | {e["event"]: e for e in reversed(order)}
    wanted = {"config.json": newest["segment"]["config_json_sha256"], MODEL: newest["finish"].get("model_sha256")}
    for name, sha256 in (wanted | newest["report"].get("files", {})).items():
        data = (folder / name).read_bytes() if (folder / name).is_file() else None
        if data is not None and sha256 != (_model_hash(data) if name == MODEL else hashlib.sha256(data).hexdigest()):
            raise Wrong(f"{name}: is not the one that the log names")


def _model_hash(data: bytes) -> str:
    """``engine.hashes.model_hash`` of a safetensors file."""
    start = 8 + int.from_bytes(data[:8], "little")
    header, tensors, digest = json.loads(data[8:start]), memoryview(data)[start:], hashlib.sha256()
    for key in sorted(header.keys() - {"__metadata__"}):
        digest.update(f"{key}|torch.{TYPES[header[key]['dtype']]}|{tuple(header[key]['shape'])}|".encode())
        digest.update(tensors[slice(*header[key]["data_offsets"])])
    return digest.hexdigest()


def main() -> int:
    """The command; 1 where something does not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--root", type=Path, help="rootCA.pem of the reader's own startup kit")
    parser.add_argument("--heads", type=Path, action="append", default=[], help="what a site kept; repeatable")
    print("\n".join((found := check(**vars(parser.parse_args()))).lines()))
    return bool(found.problem)


if __name__ == "__main__":
    sys.exit(main())
