# SPDX-License-Identifier: Apache-2.0
"""Checks an audit log for somebody who trusts nobody: its chain, who signed what, and what a site kept of it.

    python -m fairflare.privacy.log_verifier RUN [--root rootCA.pem] [--heads SITE.heads.jsonl ...]

RUN is a run's folder or its audit.jsonl. Neither torch nor FLARE is imported, and nothing of the engine: the rules stand
here once more, in one file, to be read. With several --heads the sites' files are held against each other too. What
signatures mean is in ``statements``; what cannot be found is in docs/audit-log.md.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store

from fairflare.privacy.statements import LAST, answer_bytes, head_bytes, numbers_hash

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"} | {
    f"I{size}": f"int{size}" for size in (8, 16, 32, 64)
}
COMPARED = ("val", "test", "n", "groups")
"""What of a site's evaluation its own file is held against."""
Entry = dict[str, Any]


class Wrong(Exception):
    """What does not hold, in one line."""


@dataclass
class Verified:
    """What was found.

    Attributes:
        problems: what does not hold; empty: all that was checked does.
        remarks: what nobody can decide from these files.
        vouched: party -> what its signature is under.
        covered: entries up to the last head that the server signed.
    """

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    vouched: dict[str, str] = field(default_factory=dict)
    covered: int = 0

    def lines(self) -> list[str]:
        who = [f"{party} vouches for {what}" for party, what in self.vouched.items()]
        return [*(f"WRONG: {text}" for text in self.problems), *who, *self.remarks]


def check(run: Path, root: Path | None = None, heads: Sequence[Path] = ()) -> Verified:
    """Everything that can be checked of the run with these files."""
    found = Verified()
    folder = run if run.is_dir() else run.parent
    try:
        entries = read_log(run / "audit.jsonl" if run.is_dir() else run)
        signers = Signers(x509.load_pem_x509_certificate(root.read_bytes()) if root else None, entries)
        _check_signatures(entries, signers, found)
        seen = {str(path): _lines(path) for path in heads}
        last = max((line["head"]["seq"] for lines in seen.values() for line in lines if "head" in line), default=-1)
        if last >= len(entries):
            raise Wrong(f"the log ends with entry {len(entries) - 1}, and a site has seen the head of entry {last}")
        found.covered = max(found.covered, last + 1)
        for path, lines in seen.items():
            _check_kept(Path(path).name, lines, entries, signers, found)
        _check_files(folder, entries, found)
    except Wrong as wrong:
        found.problems.append(str(wrong))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        found.problems.append(f"the files do not have the form of a run's ({type(error).__name__}: {error})"[:200])
    return found


def read_log(path: Path) -> list[Entry]:
    """The entries of an unbroken chain."""
    entries, before = list[Entry](), "0" * 64
    for number, line in enumerate(path.read_text("utf-8").split("\n")[:-1]):
        entry = json.loads(line)
        content = {key: value for key, value in entry.items() if key != "hash"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        proper = json.dumps(entry, allow_nan=False) == line and entry["seq"] == number and entry["prev"] == before
        if not proper or entry["hash"] != hashlib.sha256(text).hexdigest():
            raise Wrong(f"audit.jsonl: the chain is broken at entry {number}")
        entries.append(entry)
        before = entry["hash"]
    if not entries or not path.read_bytes().endswith(b"\n"):
        raise Wrong("audit.jsonl: has no entry, or a last line without its end")
    return entries


class Signers:
    """Whose key signed what: certificates of the log by their SHA-256, and the root that must vouch for them."""

    def __init__(self, root: x509.Certificate | None, entries: Sequence[Entry]) -> None:
        self._root, self._names = root, dict[str, str]()
        self._known = {name: pem for entry in entries for name, pem in entry.get("certificates", {}).items()}
        self._begun = datetime.fromisoformat(entries[0]["time"])
        self.sites = set(entries[0]["sites"]) | set(entries[0].get("preflight", {}))

    def name(self, content: bytes, proof: Mapping[str, Any]) -> str:
        """The common name in the certificate whose key signed ``content``; raises Wrong where none did."""
        pem = self._known.get(proof["certificate"], proof["certificate"])
        try:
            leaf, *between = x509.load_pem_x509_certificates(pem.encode())
            padded = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)
            key: Any = leaf.public_key()
            key.verify(base64.b64decode(proof["signature"], validate=True), content, padded, hashes.SHA256())
            if pem not in self._names:
                self._names[pem] = self._checked(leaf, between)
        except Exception as error:
            raise Wrong(f"a signature or its certificate does not hold ({type(error).__name__})") from None
        return self._names[pem]

    def _checked(self, leaf: x509.Certificate, between: list[x509.Certificate]) -> str:
        """The name of a server or a site, for which the root vouched when the run began."""
        if self._root is not None:
            rules = ExtensionPolicy.webpki_defaults_ca(), ExtensionPolicy.permit_all()
            builder = PolicyBuilder().store(Store([self._root])).time(self._begun)
            builder.extension_policies(ca_policy=rules[0], ee_policy=rules[1]).build_client_verifier().verify(
                leaf, between
            )
        if leaf.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME):
            raise ValueError("an administrator's certificate")
        return str(leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _check_head(head: Mapping[str, Any], entries: Sequence[Entry], signers: Signers, where: str) -> str:
    """The server's name, where it signed ``head`` and the log has it."""
    server = signers.name(head_bytes(head), head)
    if server in signers.sites:
        raise Wrong(f"{where}: the head is signed by the site {server}, not by the server")
    place = head["seq"]
    if head["log"] != entries[0]["hash"]:
        raise Wrong(f"{where}: the head is of another log")
    if not 0 <= place < len(entries) or entries[place]["hash"] != head["hash"]:
        raise Wrong(f"{where}: entry {place} is not the one that was signed: the log was written anew, or forked")
    return server


def _check_signatures(entries: Sequence[Entry], signers: Signers, found: Verified) -> None:
    """Heads and answers as the log shows them; in a signed log none may be missing."""
    signed = [entry for entry in entries if "head" in entry]
    rounds, seen, servers, floor = dict[str, list[int]](), dict[str, int](), set[str](), 0
    for entry in entries:
        number, event = entry["seq"], entry["event"]
        if "head" in entry:
            where, head = f"entry {number}", entry["head"]
            servers.add(_check_head(head, entries[:number], signers, where))
            if head["seq"] < floor:
                raise Wrong(f"{where}: its head is older than the round before it")
            found.covered = max(found.covered, head["seq"] + 1)
            for site, one in entry.get("signed", {}).items():
                said = answer_bytes(site, one["task"], one["round"], head["hash"], one["update"], one["numbers"])
                if signers.name(said, one) != site:
                    raise Wrong(f"{where}: what is said to be {site}'s is not signed by it")
                seen[site] = head["seq"]
                if event == "round" and one["round"] == entry["round"] and one["update"]:
                    rounds.setdefault(site, []).append(one["round"])
        needed = {"round": "accepted", "evaluation": "sites"}.get(event, "")
        missing = sorted(set(entry.get(needed, ())) - set(entry.get("signed", {}))) if signed and needed else []
        missing += [s for s in entry.get(needed, ()) if signed and event == "round" and number not in missing
                    and entry["round"] not in rounds.get(s, ())]  # fmt: skip
        if missing:
            raise Wrong(f"entry {number} ({event}): accepted without its signature: {missing[0]}")
        if event in ("start", "resume", "round"):
            floor = number
    if len(servers) > 1:
        raise Wrong(f"heads are signed by several servers: {', '.join(sorted(servers))}")
    if not signed:
        found.remarks.append("nobody signed this log: whoever can write the folder can make it anew")
        return
    for server in servers:
        found.vouched[f"server {server}"] = f"entries 0 to {found.covered - 1} ({_events(entries[:found.covered])})"
    for site in sorted(seen):
        updates = ", ".join(map(str, rounds.get(site, ()))) or "none"
        found.vouched[f"site {site}"] = f"its updates of rounds {updates}; having seen entries 0 to {seen[site]}"
    if rest := [e["event"] for e in entries[found.covered :] if e["event"] != "countersigned"]:
        found.remarks.append(f"nobody vouches for entries from {found.covered} on ({', '.join(rest)})")


def _events(entries: Sequence[Entry]) -> str:
    last = max((entry["round"] for entry in entries if entry["event"] == "round"), default=0)
    return ", ".join([f"rounds to {last}", *(e["event"] for e in entries if e["event"] in ("evaluation", "report"))])


def _lines(path: Path) -> list[Entry]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _check_kept(
    name: str, lines: Sequence[Entry], entries: Sequence[Entry], signers: Signers, found: Verified
) -> None:
    """A site's own file against the log: the heads that it saw, its updates, and its numbers."""
    mine, told = list[Entry](), dict[tuple[str, int], list[Entry]]()
    for line in lines:
        if "head" in line:
            _check_head(line["head"], entries, signers, name)
        else:
            mine.append(line["signed"])
            if numbers_hash(line["told"]) != line["signed"]["numbers"]:
                raise Wrong(f"{name}: numbers are not those that were signed: the site's own file was changed")
            kind = "evaluate" if mine[-1]["task"] == "evaluate" else "round"
            told.setdefault((kind, mine[-1]["round"]), []).append(line["told"])
    sites = {_signer_of(one, signers) for one in mine}
    if len(sites) != 1:
        raise Wrong(f"{name}: expected what one site signed, got {len(sites)} sites")
    (site,) = sites
    sent = {(one["round"], one["update"]) for one in mine if one["update"]}
    for entry in entries:
        logged = entry.get("signed", {}).get(site, {})
        if logged.get("update") and (logged["round"], logged["update"]) not in sent:
            raise Wrong(f"{name}: entry {entry['seq']} has an update that the site did not keep as its own")
        if entry["event"] == "round" and site in entry["accepted"]:
            every = [one for task, one in _told(told, "round", entry["round"])]
            merged = {key: value for one in every for key, value in one.items() if value not in (None, {})}
            if not _within(entry["accepted"][site], merged):
                raise Wrong(f"{name}: round {entry['round']}: the log has other numbers of {site} than it sent")
        if entry["event"] == "evaluation" and site in entry["sites"]:
            shown = {key: entry["sites"][site][key] for key in COMPARED if key in entry["sites"][site]}
            kept = [one.get("metrics", {}) for (kind, _), every in told.items() if kind == "evaluate" for one in every]
            if not any(_within(shown, one) for one in kept):
                raise Wrong(f"{name}: the log has another evaluation of {site} than it sent")
    for number, update in sorted(sent):
        at = [e for e in entries if e.get("round") == number and e["event"] in ("round", "round_failed")]
        if any(e.get("signed", {}).get(site, {}).get("update") == update for e in at):
            continue
        why = next((e["rejected"][site]["code"] for e in at if site in e.get("rejected", {})), "")
        if at and not why and site not in at[-1].get("accepted", {}):
            raise Wrong(f"{name}: round {number}: the log neither has the update of {site} nor says why it is left out")
        found.remarks.append(f"round {number}: {site} sent an update; the log says: {why or 'nothing yet'}")


def _told(told: Mapping[tuple[str, int], list[Entry]], kind: str, number: int) -> list[tuple[str, Entry]]:
    return [(kind, one) for one in told.get((kind, number), ())]


def _signer_of(one: Mapping[str, Any], signers: Signers) -> str:
    """The site that signed a line of its own file."""
    pem = one["certificate"].encode()
    names = x509.load_pem_x509_certificates(pem)[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    site = str(names[0].value)
    said = answer_bytes(site, one["task"], one["round"], one["head"], one["update"], one["numbers"])
    return signers.name(said, one)


def _within(shown: Any, kept: Any) -> bool:
    """Whether ``kept`` has every number that is shown."""
    if isinstance(shown, Mapping):
        return isinstance(kept, Mapping) and all(key in kept and _within(shown[key], kept[key]) for key in shown)
    return bool(shown == kept)


def _check_files(folder: Path, entries: Sequence[Entry], found: Verified) -> None:
    """Configuration, reports and model beside the log are those that the signed part of it names."""
    sealed = entries[: found.covered] or entries
    wanted = {"config.json": entries[0].get("config_json_sha256")}
    wanted |= next((entry["files"] for entry in reversed(sealed) if entry["event"] == "report"), {})
    for name, sha256 in wanted.items():
        path = folder / name
        if sha256 and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise Wrong(f"{name}: is not the file that the {'signed' if found.covered else 'whole'} log names")
    model = next((entry["model_sha256"] for entry in reversed(sealed) if "model_sha256" in entry), "")
    path = folder / "model.safetensors"
    if path.is_file() and _model_hash(path.read_bytes()) != model:
        raise Wrong("model.safetensors: is not the model that the log names")


def _model_hash(data: bytes) -> str:
    """``engine.hashes.model_hash`` of a safetensors file."""
    start = 8 + int.from_bytes(data[:8], "little")
    header, digest = json.loads(data[8:start]), hashlib.sha256()
    for key in sorted(name for name in header if name != "__metadata__"):
        one = header[key]
        digest.update(f"{key}|torch.{TYPES[one['dtype']]}|{tuple(one['shape'])}|".encode())
        digest.update(data[start + one["data_offsets"][0] : start + one["data_offsets"][1]])
    return digest.hexdigest()


def main() -> int:
    """The command; 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--root", type=Path, help="rootCA.pem of the site's own startup kit")
    parser.add_argument("--heads", type=Path, action="append", default=[], help="what a site kept; repeatable")
    asked = parser.parse_args()
    found = check(asked.run, asked.root, asked.heads)
    print("\n".join(found.lines()))
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
