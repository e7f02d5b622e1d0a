# SPDX-License-Identifier: Apache-2.0
"""Every situation of the corpus is read right, or refused with remedies that lead to the right reading when pasted."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest

import import_situations
from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import DataError
from fairflare.data.inputs import TableInputs
from fairflare.data.readers.tables import read_table
from fairflare.data.table_columns import coded, features_of, read_columns
from fairflare.import_data.tables import read_again
from fairflare.tasks.kinds.own import INSIDE
from fairflare.tasks.own.tabular import GAPS

REMEDY = re.compile(r"\((--[^()]*(?:\([^()]*\)[^()]*)*)\)")
"""Flags in brackets, as a refusal prints them, up to their closing bracket."""
LAID_OUT = {"--sheet", "--header", "--hidden", "--mapping"}
WORDS = re.compile(r"^(.*?)(?: (?:leaves?|takes?|keeps?|says?|accepts?|names?)\b.*)?$")


def init(capsys, path, *arguments):
    """Exit code, what `init --json` says, and its refusal."""
    with pytest.raises(SystemExit) as stop:
        main(["init", str(path), "--json", *map(str, arguments)])
    streams = capsys.readouterr()
    return stop.value.code, json.loads(streams.out) if streams.out else {}, streams.err


def remedies(refusal):
    """The flags of each remedy, as a shell splits them."""
    found = [shlex.split(WORDS.match(text)[1]) for text in REMEDY.findall(refusal)]
    return [one for one in found if not any(word.endswith(("LEVEL", "COLUMN", "...")) for word in one)]


def wrong(reading, truth, root):
    """What of the ``truth`` a reading, of which files are written below ``root``, misses: a line each."""
    options = reading["options"]
    names = next(csv.reader([options.get("features", "")]), [])
    specs = json.loads(options.get("columns", "{}"))
    kinds = {name: specs.get(name, {"kind": "number"})["kind"] for name in names}
    known = {"patient": reading.get("patients", "").removeprefix("column "), "kind": reading["kind"]}
    known |= {"label": options.get("label"), "time": options.get("time"), "classes": reading["classes"]}
    known["channels"] = options.get("channels")
    found = [
        f"{key}: expected {truth[key]!r}, got {known[key]!r}"
        for key in known
        if truth.get(key, known[key]) != known[key]
    ]
    sites = truth.get("sites", len(reading["sites"]))
    if sites not in (len(reading["sites"]), [*reading["sites"]]):
        found.append(f"sites: expected {sites}, got {[*reading['sites']]}")
    found += [f"{name}: expected a predictor" for name in truth.get("has", ()) if name not in names]
    found += [f"{name}: expected no predictor" for name in truth.get("lacks", ()) if name in names]
    for name, kind in truth.get("kinds", {}).items():
        if kinds.get(name) != kind:
            found.append(f"{name}: expected {kind}, got {kinds.get(name)}")
    lines = [*reading["notes"], *reading["suspects"]]
    found += [
        f"expected to be told {text!r}" for text in truth.get("says", ()) if not any(text in one for one in lines)
    ]
    found += [
        f"expected no line with {text!r}" for text in truth.get("unsaid", ()) if any(text in one for one in lines)
    ]
    rows = sum(sum(n[split] for split in ("train", "val", "test")) for n in reading["sites"].values())
    if truth.get("rows", rows) != rows:
        found.append(f"rows: expected {truth['rows']}, got {rows}")
    return found


def unlike_at_init(path, reading, root):
    """Rows that are written and that a model does not get where the table is read again, for a prediction.

    Sheets and headers that a flag names are the user's to name again.
    """
    names, columns = next(csv.reader([reading["options"]["features"]])), reading["options"].get("columns", "")
    known = read_columns(columns, names)
    numbers, plain = features_of(names, known)
    levels = {name: one.levels or () for name, one in known.items() if one.kind == "category" and not one.separator}
    inputs = TableInputs(numbers, plain, levels, (*GAPS, *coded(known)))

    def rows(table):
        texts = {name: list(table[name]) for name in inputs.columns}
        found = np.hstack(inputs.features(path.name, texts))
        return Counter(row.tobytes() for row in np.where(np.isnan(found), -1e9, found))

    own = pd.concat(read_table(site) for site in (root / INSIDE).glob("*.csv")).fillna("")
    try:
        return sum((rows(own) - rows(read_again(path, inputs)[0])).values())
    except DataError as refusal:  # sites that write dates in other ways lie in one table here
        assert "expected a date" in str(refusal)
        return 0


def written(root):
    """The rows of every site's table or list."""
    for path in (root / INSIDE).glob("*.json"):
        for split, entries in json.loads(path.read_text()).items() if path.stem != "dataset" else ():
            yield from ({"@site": path.stem, "patient": one.get("patient_id", ""), "split": split} for one in entries)
    for site in (root / INSIDE).glob("*.csv"):
        with site.open(newline="") as file:
            yield from ({"@site": site.stem, **row} for row in csv.DictReader(file))


@each("name", import_situations.ALL)
def test_a_situation_is_read_right_or_its_remedies_lead_there(name, tmp_path, capsys):
    one = import_situations.ALL[name]
    root = tmp_path / "data"
    root.mkdir()
    made = one.make(root)
    if isinstance(made, pd.DataFrame):
        made.to_csv(root / one.name, index=False)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code, reading, err = init(capsys, root / one.name, "--yes", *one.flags)
    if one.refused:
        assert code == 2 and err.count("\n") == 1 and not reading and not (root / INSIDE).exists(), (reading, err)
        assert all(part in err for part in one.refused), err
        reached = not one.leads
        for flags in remedies(err):
            code, reading, then = init(capsys, root / one.name, "--dry-run", *one.flags, *flags)
            assert code in (0, 2) and "Traceback" not in then and then != err, (flags, then)
            reached |= code == 0 and not wrong(reading, one.leads, root)
        assert reached and (remedies(err) or not one.leads), (err, reading and wrong(reading, one.leads, root), then)
    else:
        assert code == 0, err
        assert not wrong(reading, one.truth, root)
        first = {path: path.read_bytes() for path in (root / INSIDE).rglob("*") if path.is_file()}
        if "features" in reading["options"] and (path := root / one.name).is_file() and not {*one.flags} & LAID_OUT:
            assert not unlike_at_init(path, reading, root), name
        splits = defaultdict(set)
        if one.truth.get("patient"):
            for row in written(root):
                splits[row["@site"], row["patient"]].add(row["split"])
            assert len(splits) > 9 and all(len(where) == 1 for where in splits.values())
        if events := one.truth.get("events"):
            says = int((made["status" if "status" in made else "vital_status"].astype(str) == events).sum())
            assert sum(row[reading["options"]["label"]] == "1" for row in written(root)) == says
        for path in sorted((root / INSIDE).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (root / INSIDE).rmdir()
        assert init(capsys, root / one.name, "--yes", *one.flags)[0] == 0
        assert first == {path: path.read_bytes() for path in (root / INSIDE).rglob("*") if path.is_file()}
    assert all(path.read_bytes() == content for path, content in before.items())


def test_the_corpus_is_large():
    assert len(import_situations.ALL) >= 80


@pytest.mark.parametrize("visits", [1, 3])
def test_a_table_of_3000_rows_takes_at_most_two_seconds_of_one_core(visits, tmp_path):
    rng = np.random.default_rng(0)
    n, died = 3000, rng.random(3000) < 0.3
    columns = {"hospital": rng.choice(["Berlin", "Hamburg", "Paris"], n), "age": rng.integers(18, 95, n)}
    columns |= {f"lab{k}": np.round(rng.normal(50 + k, 10, n) + 2 * died, 2) for k in range(30)}
    columns |= {f"class{k}": rng.choice([*"abcd"], n) for k in range(10)}
    table = pd.DataFrame({"patient_id": [f"P{k // visits:05d}" for k in range(n)], **columns, "died": died.astype(int)})
    table["hospital"] = table.groupby("patient_id")["hospital"].transform("first")
    table.to_csv(tmp_path / "rows.csv", index=False)
    seconds, *heavy = cost_of_init(tmp_path / "rows.csv")
    assert (tmp_path / INSIDE / "Berlin.csv").is_file() and not heavy and float(seconds) < 2


@pytest.mark.long
@pytest.mark.parametrize(("rows", "columns"), [(5000, 1280), (20_000, 200)])
def test_a_wide_table_takes_at_most_ten_seconds_of_one_core(rows, columns, tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(rows, columns)).round(5)
    table = pd.DataFrame(values, columns=[f"f{k}" for k in range(columns)])
    table.insert(0, "hospital", rng.choice(["Berlin", "Hamburg", "Paris"], rows))
    table.assign(died=(values[:, 0] + rng.normal(size=rows) > 1).astype(int)).to_csv(tmp_path / "t.csv", index=False)
    seconds, *_ = cost_of_init(tmp_path / "t.csv")
    assert (tmp_path / INSIDE / "Berlin.csv").is_file() and float(seconds) < 10


def cost_of_init(path):
    """CPU seconds of ``init``, and the heavy packages that it imports."""
    code = "import sys, time; from fairflare.cli.main import main\ntry: main()\nfinally: "
    code += "print(time.process_time(), *{'torch', 'sklearn', 'scipy', 'monai'} & {*sys.modules}, file=sys.stderr)"
    command = [sys.executable, "-c", code, "init", str(path), "--yes"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return done.stderr.split("\n")[-2].split()
