# SPDX-License-Identifier: Apache-2.0
"""An evidence pack held against the schemas of its documents, and its values against the files that they point to."""

import json
import os
from pathlib import Path

import yaml
from bs4 import BeautifulSoup

from cases import later
from fairflare_lab.report.evidence_files import DOCUMENTS
from fairflare_lab.studies.evidence import init_evidence

xmlschema = later("xmlschema")
schema = later("cyclonedx.schema")
validation = later("cyclonedx.validation.json")
rocrate = later("rocrate.rocrate")
jsonschema = later("jsonschema")
addresses = later("rfc3986_validator")
SCHEMA = Path(__file__).parent / "chai" / "schema-v0.2.xsd"
SIGNATURE = "http://www.w3.org/2000/09/xmldsig#"
CHAI = "{https://mc.chai.org/v0.2/schema.xsd}"


def check_pack(folder):
    """Every document is valid, every pointer leads to something, every result is the report's."""
    own = os.path.join(os.path.dirname(xmlschema.__file__), "schemas", "DSIG", "xmldsig-core-schema.xsd")
    xsd = xmlschema.XMLSchema(str(SCHEMA), locations={SIGNATURE: own}, allow="local")
    card = folder / "chai-model-card.xml"
    assert not [error.reason for error in xsd.iter_errors(str(card))]
    bom = (folder / "ml-bom.cdx.json").read_text()
    # jsonschema's own check of IRIs compiles a grammar in every process that imports MONAI, which imports jsonschema.
    formats = jsonschema.Draft7Validator.FORMAT_CHECKER
    formats.checks("iri-reference")(lambda address: bool(addresses.validate_rfc3986(address, rule="URI_reference")))
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(bom) is None
    check_crate(folder)
    check_pages(folder, json.loads((folder / "evidence.json").read_text()))
    files = {name: json.loads((folder / name).read_text()) for name in ("report.json", "evidence.json")}
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    rows = [
        row
        for entries in files["evidence.json"].values()
        for entry in entries
        for part in entry["parts"]
        for row in (*part["rows"], *({"source": source} for source in part["sources"] if part["text"]))
    ]
    for row in rows:
        for source in row["source"].split("; "):
            found = pointed(source, files["report.json"], lines)
            assert "value" not in row or found == [row["value"]], source
    results = {json.loads(one.text)["source"] for one in xsd_results(card) if one.text != "null"}
    told = {(one["type"], one["slice"]): one for one in measured(json.loads(bom))}
    shown = {row["source"]: row for row in rows if "value" in row}
    assert told and results <= set(shown)
    for row in shown.values():
        if (one := told.get((row["metric"], row["slice"]))) is not None:
            assert json.loads(one["value"]) == row["value"]
            ends = one.get("confidenceInterval")
            assert [row["low"], row["high"]] == ([json.loads(end) for end in ends.values()] if ends else [None, None])


def answers(folder):
    """The YAML of ``init``, every question answered."""
    path = init_evidence(folder)
    path.write_text(yaml.safe_dump({key: answer(key) for key in yaml.safe_load(path.read_text())}))
    return path


def answer(key):
    return "https://example.org/a?b=1&c=2" if key.endswith("_url") else f"<{key}> & -- so"


def check_pages(folder, entries_of):
    """The documents that are pages have a row for every item, and say its shares; every link leads to a file."""
    for name, file in ((name, one["file"]) for name, one in DOCUMENTS.items() if one["file"].endswith("html")):
        html = BeautifulSoup((folder / file).read_text(), "html.parser")
        rows, entries = html.select('[aria-label="Items"] tbody tr'), entries_of[name]
        assert [row.th.text for row in rows] == [entry["item"] for entry in entries]
        states = [state for entry in entries for state in entry["states"]]
        said = [int(one.text) for one in html.select("main > p > strong")[-3:]]
        assert said == [states.count(kind) for kind in ("evidence", "human", "blank")], name
    index = BeautifulSoup((folder / "index.html").read_text(), "html.parser")
    links = {link["href"] for link in index.select("a")}
    assert links >= {one["file"] for one in DOCUMENTS.values()} and all((folder / link).exists() for link in links)


def check_crate(folder):
    """RO-Crate 1.1's required properties, and that its files are those of the folder."""
    crate = rocrate.ROCrate(folder)
    root = crate.root_dataset
    assert all(root[key] for key in ("name", "description", "datePublished", "license"))
    named = {entity.id for entity in crate.data_entities}
    assert named == {path.name for path in folder.iterdir()} - {"ro-crate-metadata.json"}
    graph = json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
    known = {one["@id"] for one in graph}
    assert len(known) == len(graph) and all(one.get("name") for one in graph if one["@id"] != "ro-crate-metadata.json")
    for one in graph:
        for value in one.values():
            for ref in value if isinstance(value, list) else [value]:
                assert not isinstance(ref, dict) or ref["@id"] in known or ref["@id"].startswith("https://w3id.org")


def measured(bom):
    return bom["components"][0]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]


def xsd_results(card):
    from xml.etree import ElementTree

    return ElementTree.parse(card).iter(f"{CHAI}ValueJson")


def pointed(source, report, lines):
    """What a pointer leads to; config.json and the model are in the run's folder, a human's words in the YAML."""
    name, _, path = source.partition("#/")
    if name.startswith("audit.jsonl:"):
        first = int(name.partition(":")[2].split()[0])
        content = lines[first - 1]
    elif name == "report.json":
        content = report
    else:
        assert name in ("audit.jsonl", "config.json", "model.safetensors", "best.safetensors") or name.startswith(
            "human: "
        )
        return [None]
    found = [content]
    for step in path.split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if step == "*":
            found = [one for many in found for one in many]
        else:
            found = [many[int(step)] if isinstance(many, list) else many[step] for many in found]
    assert found, source
    return found
