# SPDX-License-Identifier: Apache-2.0
"""Items become documents: CHAI's XML, CycloneDX and RO-Crate as JSON, the others as pages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from fairflare.report.evidence.entries import Entry, score, shares
from fairflare.report.evidence.run import Run, arrivals
from fairflare.report.templates import rendered

Json = dict[str, Any]
Filled = Mapping[str, Sequence[Entry]]
CHAI = "https://mc.chai.org/v0.2/schema.xsd"
NAMED = ("properties", "externalReferences")
"""Lists of a BOM whose entries are found by name or type."""
TITLES = {
    "chai": ("chai-model-card.xml", "CHAI applied model card (v0.2)"),
    "bom": ("ml-bom.cdx.json", "CycloneDX 1.6 ML-BOM"),
    "crate": ("ro-crate-metadata.json", "RO-Crate 1.1"),
    "tripod": ("tripod-ai.html", "TRIPOD+AI: where each item is answered"),
    "annex": ("annex-iv.html", "EU AI Act: Annex IV, Articles 12 and 19"),
    "protection": ("data-protection.html", "Data protection: what left which hospital"),
    "change": ("change-control.html", "Change control"),
}
"""Document -> its file and title."""
INTROS = {
    "tripod": "Collins et al., BMJ 2024;385:e078378. A map for the authors of a report; items are shortened, and the statement holds.",
    "annex": "Regulation (EU) 2024/1689. A skeleton for the provider's technical documentation; it claims neither that the system is of high risk nor "
    "that it conforms. Points are shortened, and the regulation holds.",
    "protection": "What the hospitals of this run could send and did send, from the schema that checks every answer and from the audit log. "
    "The server makes of the answers the model that it sends to the hospitals; which methods show a hospital more than that, docs/security.md of FairFLARE "
    "says. A page for the controller's record; it is no legal assessment.",
    "change": "From which state a new version would start, what refused bad answers in this run, and what a human must decide.",
}


def chai_xml(entries: Sequence[Entry]) -> str:
    """The card in the schema's order; pointers stand as comments before the values."""
    ET.register_namespace("", CHAI)
    root = ET.Element(f"{{{CHAI}}}AppliedModelCard")
    for entry in entries:
        *above, last = entry.item.split("/")
        node = root
        for step in above:
            found = node.find(f"{{{CHAI}}}{step}")
            node = ET.SubElement(node, f"{{{CHAI}}}{step}") if found is None else found
        if entry.sources and last != "Results":
            node.append(ET.Comment(f" {'; '.join(entry.sources).replace('--', '- -')} "))
        leaf = ET.SubElement(node, f"{{{CHAI}}}{last}")
        leaf.text = _clean(entry.text)
        if last == "Results":
            leaf.text = None
            for row in entry.rows or [{"metric": "no result", "slice": ""}]:
                result = ET.SubElement(leaf, f"{{{CHAI}}}MetricResult")
                ET.SubElement(result, f"{{{CHAI}}}Label").text = _clean(f"{row['metric']}, {row['slice']}".strip(", "))
                ET.SubElement(result, f"{{{CHAI}}}ValueJson").text = _clean(json.dumps(row if entry.rows else None))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """``text`` without characters that XML cannot hold."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def bom(entries: Sequence[Entry], run: Run) -> Json:
    """The BOM; a pointer of a value is a property ``fairflare:source:PLACE`` of the model, or of the value itself."""
    model: Json = {"type": "machine-learning-model", "bom-ref": "model", "name": ""}
    model["modelCard"] = {"modelParameters": {"approach": {"type": "supervised"}}}
    chain = run.detail["provenance"]["chain_head"]
    made: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, chain)}",
        "version": 1,
        "metadata": {"tools": {"components": [_software(run, "fairflare")]}},
        "components": [model],
    }
    sources = []
    for entry in entries:
        value: Any = [_bom_row(row) for row in entry.rows] if entry.rows else entry.text
        if value:
            _put(made, entry.item.split("/"), value)
            # Rows of fairness assessments and data sets have no place for properties.
            sources.append({"name": f"fairflare:source:{entry.item}", "value": "; ".join(entry.sources)})
    if run.model:
        model["hashes"] = [{"alg": "SHA-256", "content": run.model[1]}]
    model["properties"] = sources
    made["components"] += [_software(run, name) for name in run.detail["provenance"]["versions"] if name != "fairflare"]
    made["dependencies"] = [{"ref": "model", "dependsOn": [one["bom-ref"] for one in made["components"][1:]]}]
    return made


def _software(run: Run, name: str) -> Json:
    version = run.detail["provenance"]["versions"][name]
    purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _bom_row(row: Mapping[str, Any]) -> Json:
    if "metric" not in row:
        return {key: value for key, value in row.items() if key != "source"}
    found = {"type": row["metric"], "value": json.dumps(row["value"]), "slice": row["slice"]}
    if row["low"] is not None:
        found["confidenceInterval"] = {"lowerBound": json.dumps(row["low"]), "upperBound": json.dumps(row["high"])}
    return found


def _put(place: Any, steps: Sequence[str], value: Any) -> None:
    """Set ``value`` in nested mappings and lists, which are made where they are missing."""
    for step, following in zip(steps, steps[1:]):
        if step in NAMED:
            key = ("name", "value") if step == "properties" else ("type", "url")
            place.setdefault(step, []).append(dict(zip(key, (following, value), strict=True)))
            return
        if following.isdigit():
            place = place.setdefault(step, [])
        elif step.isdigit():
            if len(place) <= int(step):
                place.append({})
            place = place[int(step)]
        else:
            place = place.setdefault(step, {})
    place.append(value) if isinstance(place, list) else place.update({steps[-1]: value})


def crate(entries: Sequence[Entry], run: Run, files: Sequence[str]) -> Json:
    """The crate of the pack's folder: its files, the run that made them, and what is not in it, by hash."""
    texts: dict[str, Json] = {}
    for entry in entries:
        entity, name = entry.item.split(" ")
        texts.setdefault(entity, {}).update({name: entry.text} if entry.text else {})
    licence = texts["./"].pop("license", "")
    sites = [f"#site-{i}" for i in range(1, len(run.detail["sites"]) + 1)]
    parts = [*sorted(run.files), *sorted(files)]
    hasher = {name: {"sha256": found[0], "contentSize": str(found[1])} for name, found in run.files.items()}
    graph: list[Json] = [
        _entity("ro-crate-metadata.json", "CreativeWork", about=_ref("./"), conformsTo=_ref("https://w3id.org/ro/crate/1.1")),
        _entity("./", "Dataset", license=_ref("#licence"), author=_ref("#author"), hasPart=[_ref(name) for name in parts], mentions=_ref("#run")),
        _entity("#licence", "CreativeWork", name=licence or "not stated", description="The licence of these documents, as a human gave it."),
        _entity("#author", "Organization", **({} if texts["#author"].get("name") else {"name": "not stated"})),
        _entity("#run", "CreateAction", instrument=_ref("#fairflare"), object=[_ref(one) for one in sites], result=[_ref("#model"), *(_ref(name) for name in sorted(run.files))]),
        _entity("#fairflare", "SoftwareApplication", name="FairFLARE"),
        _entity("#model", "CreativeWork", name="the trained model; it is not in this crate"),
    ]  # fmt: skip
    graph += [_entity(ref, "CreativeWork", name=f"data of {row['site']}", description="They are at the hospital and not in this crate.") for ref, row in zip(sites, run.detail["sites"], strict=True)]  # fmt: skip
    names = {file: title for file, title in TITLES.values()}
    kinds = {"html": "text/html", "json": "application/json", "xml": "application/xml", "jsonl": "application/jsonl"}
    graph += [_entity(name, "File", name=names.get(name, name), encodingFormat=kinds[name.rpartition(".")[2]], **hasher.get(name, {})) for name in parts]  # fmt: skip
    for one in graph:
        one |= texts.get(one["@id"], {})
    return {"@context": ["https://w3id.org/ro/crate/1.1/context", {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}], "@graph": graph}


def _entity(ref: str, kind: str, **more: Any) -> Json:
    return {"@id": ref, "@type": kind, **more}


def _ref(ref: str) -> Json:
    return {"@id": ref}


def page(document: str, entries: Sequence[Entry], run: Run) -> str:
    """A document as HTML."""
    more = {"arrivals": arrivals(run), "leaves": run.leaves} if document == "protection" else {"arrivals": [], "leaves": []}
    title, intro = TITLES[document][1], INTROS[document]
    return rendered("evidence", title=title, intro=intro, entries=entries, shares=shares(entries), run=run.detail, documents=[], **more)


def index(filled: Filled, run: Run, made_bom: Json) -> str:
    """The first page of the pack: the documents and how much of each is filled."""
    rows = [{"file": TITLES[name][0], "title": TITLES[name][1], **shares(entries)} for name, entries in filled.items()]
    points, lacks = score(made_bom)
    intro = f"Completeness of the ML-BOM: {points} of 100" + (f"; it lacks {', '.join(lacks)}." if lacks else ".")
    return rendered("evidence", title="Evidence pack", intro=intro, entries=[], shares=None, run=run.detail, documents=rows, arrivals=[], leaves=[])


def ledger(filled: Filled) -> Json:
    """Every item of every document with its parts and pointers, for programs."""
    return {
        name: [
            {"item": entry.item, "what": entry.what, "parts": [{"state": part.state, "text": part.text, "rows": list(part.rows), "sources": list(part.sources)} for part in entry.parts]}
            for entry in entries
        ]
        for name, entries in filled.items()
    }  # fmt: skip
