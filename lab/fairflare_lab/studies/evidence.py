# SPDX-License-Identifier: Apache-2.0
"""``fairflare evidence``: documents for reviewers, made of a run that has ended and of what a human must say."""

from __future__ import annotations

import hashlib
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.validation import unlisted
from fairflare.engine import files
from fairflare.engine.files import AUDIT, BEST, MODEL, read_json
from fairflare.engine.hashes import model_hash
from fairflare.privacy.log_files import log_files
from fairflare.report import EVIDENCE, PAGE, REPORT
from fairflare.report.write import absent, read_run, verified_run
from fairflare.studies.describe import leaving
from fairflare_lab.report import evidence_files as written
from fairflare_lab.report.evidence_files import DOCUMENTS, fill, questions, score, shares
from fairflare_lab.report.evidence_pack import Run

HUMAN = "evidence.yaml"


HEAD = "# What only a human can say. Text after a key goes into the documents as it is; what stays blank is counted.\n"


def write_evidence(folder: Path, out: Path | None = None, human: Path | None = None) -> dict[str, Any]:
    """Write the pack of the run in ``folder`` into ``out``; the same run and answers give the same bytes.

    ``out``: RUN/evidence when None; ``human``: the filled YAML; RUN/evidence.yaml, if there is one, when None. Returns
    folder; documents: title -> file, evidence, human and blank (numbers of parts); score of the BOM, 0 to 100, and
    lacks, the fields that it has not.

    Raises UserError: the folder holds no finished run with its report, a file does not fit to its log, or the YAML has
    an unknown key or something that is no text.
    """
    answers = _answers(human or folder / HUMAN, needed=human is not None)
    run = _read(folder)
    filled = {name: fill(name, run, answers) for name in DOCUMENTS}
    made = written.bom(filled["bom"], run)
    names = {name: one["file"] for name, one in written.DOCUMENTS.items()}
    texts = {file: written.page(name, filled[name], run) for name, file in names.items() if file.endswith(".html")}
    texts |= {"index.html": written.index(filled, run, made), "evidence.json": files.json_text(written.ledger(filled))}
    texts |= {names["chai"]: written.chai_xml(filled["chai"]), names["bom"]: files.json_text(made)}
    texts[names["crate"]] = files.json_text(written.crate(filled["crate"], run, list(texts)))
    place = out or folder / EVIDENCE
    place.mkdir(parents=True, exist_ok=True)
    for name in run.files:
        shutil.copyfile(folder / name, place / name)
    for name, text in texts.items():
        files.save_text(place / name, text)
    points, lacks = score(made)
    rows = {one["title"]: {"file": one["file"], **shares(filled[name])} for name, one in written.DOCUMENTS.items()}
    return {"folder": str(place), "documents": rows, "score": points, "lacks": lacks}


def init_evidence(folder: Path) -> Path:
    """Write the YAML with every question, blank, into ``folder`` and return its path.

    Raises UserError: it is there already.
    """
    path = folder / HUMAN
    if path.exists():
        raise UserError(f"{path}: is there already; its answers are kept")
    lines = [HEAD]
    for section, asked in questions().items():
        lines.append(f"\n# --- {section} ---\n")
        for key, question in asked.items():
            lines += textwrap.wrap(question, 100, initial_indent="# ", subsequent_indent="# ") + [f'{key}: ""\n']
    folder.mkdir(parents=True, exist_ok=True)
    files.save_text(path, "\n".join(line.rstrip("\n") for line in lines) + "\n")
    return path


def _read(folder: Path) -> Run:
    run_history, entries = verified_run(folder)
    if lacks := absent(folder, run_history):
        raise UserError(f"{folder}: expected a finished run with its report, got {', '.join(lacks)}")
    config, events = read_run(folder)
    report = read_json(folder / REPORT)
    names = (REPORT, PAGE, *(path.name for path in log_files(folder / AUDIT)))
    hashes = {name: _hashed(files.read_bytes(folder / name, files.MOST_JSON)) for name in names}
    evaluated = report["detail"]["provenance"]["evaluated_model_sha256"]
    there = [folder / name for name in (MODEL, BEST) if files.is_file(folder / name)]
    path = next((path for path in there if model_hash(files.read_tensors(path)) == evaluated), None)
    model = (path.name, *_hashed(path.read_bytes())) if path else None
    known = config["method"] in registry.methods()
    how = {"secure": config.get("secure_sum", "none") != "none", "solo": bool(report["detail"].get("benefit"))}
    leaves = leaving(config["method"], after=bool(report["detail"].get("after")), **how) if known else []
    return Run(report, entries, config, leaves, hashes, model)


def _hashed(content: bytes) -> tuple[str, int]:
    return hashlib.sha256(content).hexdigest(), len(content)


def _answers(path: Path, *, needed: bool) -> Mapping[str, str]:
    import yaml

    if not path.exists():
        if needed:
            raise UserError(f"{path}: is not there; `fairflare evidence init` writes it")
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: no YAML ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected keys with texts, got {type(found).__name__}")
    known = [key for asked in questions().values() for key in asked]
    for key, value in found.items():
        if key not in known:
            raise UserError(f"{path}: {unlisted('key', key, known)}")
        if value is not None and not isinstance(value, (str, int, float)):
            raise UserError(f"{path}: {key}: expected a text, got {type(value).__name__}")
        if key.endswith("_url") and value and not str(value).startswith(("https://", "http://")):
            raise UserError(f"{path}: {key}: expected a web address that begins with https://, got {str(value)[:60]!r}")
    return {key: str(value).strip() for key, value in found.items() if value is not None}
