# SPDX-License-Identifier: Apache-2.0
"""The items of the documents, filled in by the run and a human, and the documents that are made of them.

CHAI's XML, CycloneDX and RO-Crate as JSON, the others as pages.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from fairflare.report.values import rendered_from
from fairflare_lab.report.evidence_pack import RESULTS, Run, arrivals, table

Json = dict[str, Any]
Filled = Mapping[str, "Sequence[Entry]"]
HERE = Path(__file__).parent
"""The templates of this package."""
CHAI = "https://mc.chai.org/v0.2/schema.xsd"
KINDS = {"html": "text/html", "json": "application/json", "xml": "application/xml", "jsonl": "application/jsonl"}
NAMED = ("properties", "externalReferences")
"""Lists of a BOM whose entries are found by name or type."""
DOCUMENTS = table("items.yaml")["documents"]
"""Document -> file, title and, where it is a page, intro."""


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
    licence = {"name": licence or "not stated", "description": "The licence of these documents, as a human gave it."}
    author = {} if texts["#author"].get("name") else {"name": "not stated"}
    made = [_ref("#model"), *map(_ref, sorted(run.files))]
    conforms = _ref("https://w3id.org/ro/crate/1.1")
    root: Json = {"license": _ref("#licence"), "author": _ref("#author"), "mentions": _ref("#run")}
    root["hasPart"] = [*map(_ref, parts)]
    graph: list[Json] = [
        _entity("ro-crate-metadata.json", "CreativeWork", about=_ref("./"), conformsTo=conforms),
        _entity("./", "Dataset", **root),
        _entity("#licence", "CreativeWork", **licence),
        _entity("#author", "Organization", **author),
        _entity("#run", "CreateAction", instrument=_ref("#fairflare"), object=[*map(_ref, sites)], result=made),
        _entity("#fairflare", "SoftwareApplication", name="FairFLARE"),
        _entity("#model", "CreativeWork", name="the trained model; it is not in this crate"),
    ]
    for ref, row in zip(sites, run.detail["sites"], strict=True):
        graph.append(_entity(ref, "CreativeWork", name=f"data of {row['site']}, which stay at the hospital"))
    names = {one["file"]: one["title"] for one in DOCUMENTS.values()}
    for name in parts:
        kind = KINDS[name.rpartition(".")[2]]
        graph.append(_entity(name, "File", name=names.get(name, name), encodingFormat=kind, **hasher.get(name, {})))
    for one in graph:
        one |= texts.get(one["@id"], {})
    terms = {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}
    return {"@context": ["https://w3id.org/ro/crate/1.1/context", terms], "@graph": graph}


def _entity(ref: str, kind: str, **more: Any) -> Json:
    return {"@id": ref, "@type": kind, **more}


def _ref(ref: str) -> Json:
    return {"@id": ref}


def page(document: str, entries: Sequence[Entry], run: Run) -> str:
    seen = document == "protection"
    where = table("items.yaml")["where"].get(run.detail["env"]) if seen else None
    more: Json = {"arrivals": arrivals(run) if seen else [], "leaves": run.leaves, "where": where, "documents": []}
    about = {key: DOCUMENTS[document][key] for key in ("title", "intro")}
    return rendered_from(HERE, "evidence", entries=entries, shares=shares(entries), run=run.detail, **about, **more)


def index(filled: Filled, run: Run, made_bom: Json) -> str:
    """The first page of the pack: the documents and how much of each is filled."""
    rows = [{**DOCUMENTS[name], **shares(entries)} for name, entries in filled.items()]
    points, lacks = score(made_bom)
    intro = f"Completeness of the ML-BOM: {points} of 100" + (f"; it lacks {', '.join(lacks)}." if lacks else ".")
    more: Json = {"arrivals": [], "leaves": [], "where": None, "documents": rows, "entries": [], "shares": None}
    return rendered_from(HERE, "evidence", title="Evidence pack", intro=intro, run=run.detail, **more)


def ledger(filled: Filled) -> Json:
    """Every item of every document with its parts and pointers, for programs."""
    return {
        name: [asdict(entry) | {"states": [part.state for part in entry.parts]} for entry in entries]
        for name, entries in filled.items()
    }


TOKEN = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Part:
    """A part of an item.

    Attributes:
        kind: "evidence" (the run's) or "human".
        text: blank where nobody says it.
        sources: pointers into report, log and configuration; of a human's part the key.
        rows: of results, in place of a text.
    """

    kind: str
    text: str
    sources: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...] = ()

    @property
    def state(self) -> str:
        return self.kind if self.text or self.rows else "blank"


@dataclass(frozen=True)
class Entry:
    """An item of a document, with what is asked in words."""

    item: str
    what: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.parts if part.text)

    @property
    def sources(self) -> list[str]:
        return [source for part in self.parts if part.state != "blank" for source in part.sources]

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for part in self.parts for row in part.rows]


def questions() -> Mapping[str, Mapping[str, str]]:
    """Section -> key of the human's YAML -> question."""
    return table("human.yaml")


def fill(document: str, run: Run, human: Mapping[str, str]) -> list[Entry]:
    """The items of a document; ``human``: key -> text, blank where it is missing."""
    entries = []
    for row in table("items.yaml")[document]:
        parts = [_said(_list(row["say"]), run)] if "say" in row else []
        if "results" in row:
            rows = tuple(RESULTS[row["results"]](run))
            parts.append(Part("evidence", "", tuple(one["source"] for one in rows), rows))
        parts += [Part("human", human.get(key, ""), (f"human: {key}",)) for key in _list(row.get("human", []))]
        entries.append(Entry(row["item"], row.get("what", ""), tuple(parts)))
    return entries


def _said(sentences: Sequence[str], run: Run) -> Part:
    texts, sources = [], []
    for sentence in sentences:
        found = {token: run.value(token) for token in TOKEN.findall(sentence)}
        if all(found.values()):
            texts.append(TOKEN.sub(lambda match: found[match[1]][0], sentence))  # type: ignore[index]  # noqa: B023 - used at once
            sources += [one for said in found.values() for one in said[1]]  # type: ignore[index]  # none is None
    return Part("evidence", " ".join(texts), tuple(dict.fromkeys(sources)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def shares(entries: Sequence[Entry]) -> dict[str, int]:
    """How many parts of a document the run, a human and nobody fills; the words that a part holds are not judged."""
    states = [part.state for entry in entries for part in entry.parts]
    return {kind: states.count(kind) for kind in ("evidence", "human", "blank")}


def score(bom: Any) -> tuple[float, list[str]]:
    """Completeness of a BOM in 0 to 100, and the fields that it lacks: see the end of ``items.yaml``."""
    total, lacks = 0.0, []
    for category in table("items.yaml")["score"].values():
        missing = [name for name, path in category["fields"].items() if not _holds(bom, path.split("/"))]
        total += category["weight"] * (1 - len(missing) / len(category["fields"]))
        lacks += missing
    return round(total, 1), lacks


def _holds(found: Any, steps: Sequence[str]) -> bool:
    for step in steps:
        if isinstance(found, list):
            named = [one for one in found if step in (one.get("name"), one.get("type"))]
            found = found[int(step)] if step.isdigit() and len(found) > int(step) else (named or [None])[0]
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return bool(found)
