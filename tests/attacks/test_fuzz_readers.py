# SPDX-License-Identifier: Apache-2.0
"""Damaged files at every door of a site or server: each is read or refused in one line, soon and in little memory.

2,000 cases over ten doors in ``make test``, 20,000 in ``make test-long``. Seeds are fixed: a failure names its case.
"""

import copy
import io
import json
import math
import random
import resource
import time
import warnings
import zipfile
from dataclasses import replace

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch

from dicom_sets import dataset, save
from fairflare.core import tensor_files
from fairflare.core.errors import DataError, UserError
from fairflare.core.schema import Answer
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.geometry import geometry_of
from fairflare.data.readers.pictures import Reader
from fairflare.data.readers.tables import read_table
from fairflare.data.readers.volumes import read as read_volume
from fairflare.engine.audit import AuditLog, verify
from fairflare.engine.gate import Gate
from fairflare.engine.setup.config import RunConfig, make_config
from volume_files import write

FEW, MANY = 2_000, 20_000
MOST_SECONDS, MOST_MEMORY = 10, 2**20
"""CPU seconds of a case; KiB that all cases of a door may add to the process."""
NUMBERS = (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
ODD = (None, True, -1, 0, 2**63, 10**400, math.nan, math.inf, -1e300, "", "x" * 9999, "a\nb\x1b", "\ud800", {}, [])
ODD += ({"a": {"b": 1}}, [[]])
STRANGE = (*ODD, b"a", (1,), object(), np.float32(math.nan), torch.full((2,), math.nan), torch.ones(3), 1j)


def mutated(pick, data):
    """``data`` with one to four changes: bits, numbers of 1 to 8 bytes, cuts, copies, and pieces of itself moved."""
    found = bytearray(data)
    for _ in range(pick.randint(1, 4)):
        at = pick.randrange(len(found) + 1) if pick.randrange(3) else pick.randrange(min(len(found), 400) + 1)
        size = pick.choice((1, 2, 4, 8, 60))
        kind = pick.randrange(6)
        if kind == 0:
            found[at : at + 1] = bytes([pick.randrange(256)])
        elif kind == 1:
            width = pick.choice((1, 2, 4, 8))
            number = pick.choice(NUMBERS) % 256**width
            found[at : at + width] = number.to_bytes(width, pick.choice(("little", "big")))
        elif kind == 2:
            del found[at : at + size]
        elif kind == 3:
            found[at:at] = found[at : at + size] * pick.choice((1, 2, 500))
        elif kind == 4:
            other = pick.randrange(len(found) + 1)
            found[at : at + size] = found[other : other + size]
        elif pick.randrange(4) == 0:
            del found[at:]
    return bytes(found)


def table():
    return pd.DataFrame({"age": [61.0, 62.5, None], "Stadt": ["München", "Köln", ""], "n": [1, 2, 3]})


def csv_files(folder):
    text = table().to_csv(index=False)
    german = text.replace(".", ",").replace(",,", ";;")
    return [text.encode(), text.encode("utf-16"), text.replace(",", ";").encode("utf-8-sig"), german.encode("cp1252")]


def workbooks(folder):
    table().to_excel(folder / "t.xlsx", index=False)
    return [(folder / "t.xlsx").read_bytes()]


def workbook(pick, data):
    """The file itself, or more often one of its parts, packed again with the right checksum."""
    if not pick.randrange(4):
        return mutated(pick, data)
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    name = pick.choice(sorted(parts))
    parts[name] = mutated(pick, parts[name])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            new.writestr(name, content)
    return made.getvalue()


def parquets(folder):
    found = []
    for compression in ("snappy", "none", "zstd"):
        table().to_parquet(folder / "t.parquet", compression=compression)
        found.append((folder / "t.parquet").read_bytes())
    return found


def dicoms(folder):
    grey, colours = np.arange(256, dtype=np.uint16).reshape(16, 16), np.zeros((16, 16, 3), np.uint8)
    several = np.zeros((3, 16, 16), np.uint16)
    made = [dataset(grey, "P1"), dataset(colours, "P1", photometric="RGB"), dataset(several, "P1", NumberOfFrames=3)]
    for k, one in enumerate(made):
        save(folder / f"{k}.dcm", one)
    return [(folder / f"{k}.dcm").read_bytes() for k in range(len(made))]


def niftis(folder):
    rng, found = np.random.default_rng(0), []
    for name in ("x.nii", "x.nii.gz"):
        nibabel.save(nibabel.Nifti1Image(rng.normal(size=(8, 8, 4)).astype(np.float32), np.eye(4)), folder / name)
        found.append((folder / name).read_bytes())
    return found


def nrrds(folder):
    rng, found = np.random.default_rng(0), []
    for encoding in ("raw", "gzip"):
        image = rng.normal(size=(8, 8, 4)).astype(np.float32)
        write(folder / "x.nrrd", image, np.eye(4), encoding=encoding)
        found.append((folder / "x.nrrd").read_bytes())
    return found


def logs(folder):
    log = AuditLog(folder / "audit.jsonl")
    for number in range(4):
        log.append("round", round=number, weights={"a": 0.5, "b": 0.5})
    return [(folder / "audit.jsonl").read_bytes()]


def tensors(folder):
    with (folder / "x.safetensors").open("wb") as file:
        tensor_files.write(file, {"update": {"a": torch.ones(3), "b": torch.zeros(2, 2)}, "n": 5, "names": ["x"]})
    return [(folder / "x.safetensors").read_bytes()]


def configurations(folder):
    made = (make_config("fedism-plus", "support2"), make_config("fedavg", "tabular", values={"site_names": "a,b"}))
    return [json.dumps(one.to_json()).encode() for one in made]


def configuration(pick, data):
    """One to three values, at any depth, replaced, taken out or added."""
    content = json.loads(data)
    for _ in range(pick.randint(1, 3)):
        place = content
        while (inner := [one for one in place.values() if isinstance(one, dict) and one]) and pick.randrange(3):
            place = pick.choice(inner)
        key = pick.choice([*place, "more"])
        if pick.randrange(4):
            place[key] = copy.deepcopy(pick.choice(ODD))  # which a later change may lie in
        elif key in place and len(place) > 1:
            del place[key]
    return json.dumps(content).encode()


def read_configuration(path):
    RunConfig.from_json(json.loads(path.read_bytes()))


def read_image(path):
    Reader(16, 1).image(path)


def read_slices(path):
    geometry_of(path)
    try:
        Reader(16, 1).image(Frame(path, 1))
    except DataError:
        read_volume(path)


DOORS = {  # what writes samples, what changes one, the name it gets, what opens it
    "csv": (csv_files, mutated, "x.csv", read_table),
    "excel": (workbooks, workbook, "x.xlsx", read_table),
    "parquet": (parquets, mutated, "x.parquet", read_table),
    "dicom": (dicoms, mutated, "x.dcm", read_image),
    "dicom frames": (dicoms, mutated, "x.dcm", read_slices),
    "nifti": (niftis, mutated, "x.nii", read_slices),
    "nrrd": (nrrds, mutated, "x.nrrd", read_slices),
    "audit": (logs, mutated, "audit.jsonl", verify),
    "update": (tensors, mutated, "x.safetensors", tensor_files.read),
    "configuration": (configurations, configuration, "config.json", read_configuration),
}


def opened(path, read):
    """Whether ``path`` is read; what is no line of refusal, or takes long, fails the test."""
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
        return True
    except UserError as error:
        text = str(error)
        assert text and "\n" not in text and len(text) < 1000 and str(path.parent) not in text, text[:300]
        return False
    finally:
        assert time.process_time() - start < MOST_SECONDS


def fuzz(door, cases, folder):
    samples, change, name, read = DOORS[door]
    pool, before = samples(folder), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for case in range(cases):
        pick = random.Random(f"{door} {case}")
        sample = pick.randrange(len(pool))
        path = folder / (f"{name}.gz" if pool[sample][:2] == b"\x1f\x8b" else name)
        path.write_bytes(change(pick, pool[sample]))
        try:
            refused += not opened(path, read)
        except Exception as error:
            raise AssertionError(f"{door}, case {case}: {type(error).__name__}: {error}") from error
    assert refused > cases / 10  # the changes reach what the reader looks at
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY


FIELDS = ("round", "update", "n_examples", "scalars", "steps", "metrics", "seconds", "update_kind")
MODEL = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}


def answers(pick):
    """One answer of which any field may be anything, and two honest ones."""
    update = {key: torch.full_like(value, 0.01) for key, value in MODEL.items()}
    honest = [Answer(site, 1, dict(update), n_examples=100, steps=5) for site in ("b", "c")]
    bad = Answer("a", 1, dict(update), n_examples=100, steps=5)
    for _ in range(pick.randint(1, 3)):
        if pick.randrange(2):
            odd = pick.choice(
                (*STRANGE, torch.full((2, 3), pick.choice((1e38, math.nan, -0.0))), torch.ones(2, 3).int())
            )
            bad = replace(bad, update={**update, pick.choice(("weight", "bias", "more", 7)): odd})
        else:
            field = pick.choice(
                ("round", "update", "n_examples", "scalars", "steps", "metrics", "seconds", "update_kind")
            )
            bad = replace(bad, **{field: pick.choice(ODD)})
    return [bad, *honest]


def fuzz_gate(cases):
    gate = Gate(frozenset(MODEL))
    refused = 0
    for case in range(cases):
        start = time.process_time()
        verdict = gate.inspect(answers(random.Random(f"gate {case}")), MODEL, 1, dict.fromkeys("abc", 1000))
        accepted, rejected = {one.site for one in verdict.replies}, {one.site for one in verdict.rejections}
        assert accepted | rejected == {*"abc"} and {*"bc"} <= accepted, case
        assert all(one.detail.isprintable() and len(one.detail) <= 200 for one in verdict.rejections), case
        assert time.process_time() - start < MOST_SECONDS
        refused += len(rejected)
    assert cases / 10 < refused < cases


@pytest.mark.parametrize("door", DOORS)
def test_a_damaged_file_is_read_or_refused_in_one_line(door, tmp_path):
    fuzz(door, FEW // (len(DOORS) + 1), tmp_path)


def test_a_damaged_answer_never_passes_the_gate_and_takes_no_other_with_it():
    fuzz_gate(FEW // (len(DOORS) + 1))


@pytest.mark.long
@pytest.mark.parametrize("door", [*DOORS, "gate"])
def test_of_20_000_damaged_files_and_answers_each_is_read_or_refused(door, tmp_path):
    cases = MANY // (len(DOORS) + 1)
    fuzz_gate(cases) if door == "gate" else fuzz(door, cases, tmp_path)


def test_the_fuzzer_changes_what_it_is_given_and_always_in_the_same_way():
    data = bytes(range(256)) * 4
    found = [mutated(random.Random(f"x {case}"), data) for case in range(100)]
    assert found == [mutated(random.Random(f"x {case}"), data) for case in range(100)]
    assert sum(one != data for one in found) > 80 and len({*map(len, found)}) > 10
