# SPDX-License-Identifier: Apache-2.0
"""Features that an encoder has computed, as data: files, joining, pooling, what differs between sites, bad input."""

import csv
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cases import each
from command_line import call
from fairflare.cli.main import main
from fairflare.core.errors import DataError, UserError
from fairflare.data.readers import limits
from fairflare.data.readers.vectors import Bags
from fairflare.data.site_config import SiteConfig
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.plans import reasons
from fairflare.tasks.preflight import numbers_of, preflight

SHA, OTHER = "a" * 64, "b" * 64
SITES = ("east", "north", "west")
TASK = "tabular"


def write(path, form, ids, values, encoder="uni", sha256=SHA):
    """A file of features that says of itself which encoder made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "npz":
        np.savez(path, ids=np.array(ids), features=values, encoder=encoder, encoder_sha256=sha256)
    elif form == "npy":
        rows = np.zeros(len(ids), dtype=[("id", "U20"), ("features", "f4", values.shape[1:])])
        rows["id"], rows["features"] = ids, values
        np.save(path, rows)
        (path.parent / "encoder.json").write_text(json.dumps({"name": encoder, "sha256": sha256}))
    elif form == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["ids"], file["features"] = np.array(ids, dtype="S20"), values
            file.attrs["encoder"], file.attrs["encoder_sha256"] = encoder, sha256
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = {"patient_id": ids, "features": list(values)} if form == "parquet" else {"id": ids}
        columns |= {} if form == "parquet" else {f"v{k}": column for k, column in enumerate(values.T)}
        table = pyarrow.table(columns).replace_schema_metadata({"encoder": encoder, "encoder_sha256": sha256})
        parquet.write_table(table, path.with_suffix(".parquet"))


def table(path, ids, died, age=None):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient_id", "age", "died"])
        rows.writerows(zip(ids, age if age is not None else [50] * len(ids), ["no" if not y else "yes" for y in died]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three sites, each with files of another kind, whose outcome follows from the features."""
    root, weights = tmp_path_factory.mktemp("features"), np.random.default_rng(9).normal(size=8)
    for k, (site, form) in enumerate(zip(SITES, ("npz", "h5", "parquet"), strict=True)):
        rng = np.random.default_rng(k)
        values = rng.normal(size=(120, 8)).astype(np.float32)
        died, ids = values @ weights + rng.normal(size=120) > 0, [f"p{i}" for i in range(120)]
        table(root / f"{site}.csv", ids, died, rng.integers(30, 90, 120))
        order = rng.permutation(120)
        write(root / "uni" / f"{site}.{form}", form, [ids[i] for i in order], values[order])
    return root


def configured(root, method="fedavg", sites=SITES, rounds=2, **values):
    own = {"datalists": str(root), "site_names": ",".join(sites), "labels": "no,yes", "label": "died"}
    return make_config(method, TASK, rounds=rounds, values={**own, "vectors": "uni", **values})


def results(config, folder):
    folder.mkdir()
    run_local(config, folder)
    return next(one for one in verify(folder / "audit.jsonl") if one["event"] == "evaluation")["sites"]


@each("form", ["npz", "npy", "h5", "parquet", "columns"])
def test_each_form_gives_the_bags_and_their_means(form, tmp_path):
    values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    ids = ["a", "b", "a", "c", "c", "a", "d"]
    write(tmp_path / "uni" / f"east.{form}", form, ids, values)
    found = Bags(tmp_path, "uni", "east")
    assert str(found.encoder) == f"uni:3:{SHA}"
    np.testing.assert_array_equal(found.bag("a"), values[[0, 2, 5]])
    for pooling, pool in (("mean", np.mean), ("max", np.max)):
        pooled = found.pooled(["c", "a"], pooling)
        np.testing.assert_allclose(pooled, [pool(values[3:5], axis=0), pool(values[[0, 2, 5]], axis=0)], rtol=1e-6)


def test_a_folder_with_a_file_per_slide_is_read_by_the_files_names(tmp_path):
    for slide in ("s1", "s2"):
        write(tmp_path / "uni" / "east" / f"{slide}.npz", "npz", ["x"] * 4, np.full((4, 3), len(slide), np.float32))
    np.save(tmp_path / "uni" / "east" / "s3.npy", np.ones((2, 3), np.float32))
    (tmp_path / "uni" / "encoder.json").write_text(json.dumps({"name": "uni", "sha256": SHA}))
    assert Bags(tmp_path, "uni", "east").bag("s3").shape == (2, 3)


def test_rows_of_a_table_have_the_numbers_of_their_own_ids(folder):
    config = configured(folder, features="age", scaling="site")
    task_data = {}
    from fairflare.engine.setup.parts import build_parts

    task = build_parts(config).task
    data = task.local_data("west", None)
    place = task.located("west", None)
    whole = Bags(folder, "uni", "west").pooled([f"p{i}" for i in range(120)], "mean")
    rows = task.table(place)[2]["train"]
    back = data.splits["train"].inputs[:, 1:].double() * data.scaling.std[1:] + data.scaling.mean[1:]
    np.testing.assert_allclose(back.numpy(), whole[rows], atol=1e-5)
    assert list(numbers_of(data, task)) == ["age"] and not task_data


@each("method", ["fedavg", "fedism-plus", "fedce", "fedlwr", "fedheal", "fedufo"])
def test_methods_learn_from_features_of_three_kinds_of_files(method, folder, tmp_path):
    found = results(configured(folder, method, rounds=12), tmp_path / "run")
    assert np.mean([one["test"]["auc_ovo"] for one in found.values()]) > 0.85


def test_an_exact_regression_with_a_penalty_is_the_pooled_patients(folder, tmp_path):
    """By scikit-learn on all training rows."""
    from sklearn.linear_model import LogisticRegression

    from fairflare.engine.files import read_model
    from fairflare.engine.setup.parts import build_parts

    config = configured(folder, "glm", rounds=12, ridge=0.05)
    results(config, tmp_path / "run")
    splits = [build_parts(config).task.local_data(site, None).splits["train"] for site in SITES]
    x, y = (torch.cat([getattr(one, name) for one in splits]).double().numpy() for name in ("inputs", "targets"))
    expected = LogisticRegression(C=1 / (0.05 * len(y)), tol=1e-10, max_iter=1000).fit(x, y)
    model = read_model(tmp_path / "run" / "model.safetensors")
    np.testing.assert_allclose(model["weight"].numpy(), expected.coef_[0], atol=1e-5)


def test_encoders_are_candidates_of_the_decision(folder, tmp_path, capsys):
    """Features that say nothing are named; beside them are those of an encoder that sees the outcome."""
    root = shutil.copytree(folder, tmp_path / "data")
    for k, site in enumerate(SITES):
        write(root / "noise" / f"{site}.npz", "npz", [f"p{i}" for i in range(120)], noise(k), "noise", OTHER)
    said = ["--data", root, "--kind", "tabular", "--classes", "no,yes", "--set", "label=died"]
    asked = ["join", "decide", "decide:vectors=uni", *said, "--set", "vectors=noise", "--repeats", "2"]
    call = [str(word) for word in [*asked, "--out", tmp_path / "join"]]
    with pytest.raises(SystemExit) as stop:
        main(call)
    assert not stop.value.code, capsys.readouterr().err
    found = json.loads((tmp_path / "join" / "decision.json").read_text())
    assert list(found["methods"]) == [f"decide:vectors=uni: {model}" for model in ("own", "outside", "member")]
    for label, of in found["methods"].items():
        assert list(of["sites"]) == list(SITES)
        assert all(row["verdict"] == "gains" and 0.05 < row["own_low"] < 0.25 for row in of["sites"].values()), label
    assert all(abs(row["models"]["own"]["brier"] - 0.25) < 0.02 for row in found["sites"].values())
    assert "decide:vectors=uni: own" in (tmp_path / "join" / "join.html").read_text()
    with pytest.raises(SystemExit) as stop:
        main([*call, "--env", "sim"])
    assert stop.value.code == 2 and "expected no METHOD with --env" in capsys.readouterr().err


def noise(seed):
    return np.random.default_rng(100 + seed).normal(size=(120, 8)).astype(np.float32)


def test_runs_on_tables_without_features_keep_their_configuration(folder):
    """What was written before there were any is read as it is, and has the hash that it had."""
    plain = configured(folder, vectors="", features="age")
    content = plain.to_json()
    assert not {"vectors", "encoder", "pooling", "renamed"} & set(content["options"])
    assert type(plain).from_json(content).sha256() == plain.sha256()


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    """Bags of 30 to 60 instances: one of them shows the class, and the mean of each bag is zero."""
    root = tmp_path_factory.mktemp("bags")
    for k, site in enumerate(SITES[:2]):
        rng, ids, parts = np.random.default_rng(k), [], []
        for i in range(240):
            bag = rng.normal(size=(rng.integers(30, 61), 16))
            bag[0, 0] = 6 if i % 2 else -6
            ids += [f"p{i}"] * len(bag)
            parts.append(bag - bag.mean(axis=0))
        write(root / "uni" / f"{site}.npz", "npz", ids, np.concatenate(parts).astype(np.float32))
        table(root / f"{site}.csv", [f"p{i}" for i in range(240)], np.arange(240) % 2)
    return root


def test_attention_learns_what_the_mean_of_a_bag_hides(bags, tmp_path, capsys):
    accuracy = {}
    for pooling in ("attention", "mean"):
        config = configured(bags, sites=SITES[:2], rounds=30, pooling=pooling, model="linear", lr=0.02, epochs=2)
        found = results(config, tmp_path / pooling)
        accuracy[pooling] = np.mean([one["test"]["balanced_accuracy"] for one in found.values()])
    assert accuracy["attention"] > 0.9 > 0.65 > accuracy["mean"]
    code, _, said = call(capsys, "predict", tmp_path / "attention", bags / "east.csv", "--out", tmp_path / "p")
    assert code == 0, said
    rows = list(csv.DictReader((tmp_path / "p" / "predictions.csv").open()))
    assert np.mean([row["class"] == ("yes" if k % 2 else "no") for k, row in enumerate(rows)]) > 0.9
    code, _, said = call(
        capsys, "evaluate", tmp_path / "attention", bags / "north.csv", "--split", "test", "--out", tmp_path / "e"
    )
    assert code == 0, said


def test_a_site_whose_features_lie_elsewhere_is_named_before_the_run(folder, tmp_path):
    for site in SITES:
        ids, values = [f"p{i}" for i in range(60)], np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32)
        write(tmp_path / "uni" / f"{site}.npz", "npz", ids, values + 3 * (site == "west"))
        table(tmp_path / f"{site}.csv", ids, np.arange(60) % 2)
    said = [line for line in reasons(configured(tmp_path)) if line.startswith("features uni of")]
    assert len(said) == 1 and said[0].startswith("features uni of west: 8 of 8 means differ by more than a spread")
    assert not [line for line in reasons(configured(folder)) if line.startswith("features uni")]


def external(h5py, file, outside):
    del file["features"]
    file.create_dataset("features", (40, 8), "u1", external=[(outside, 0, 320)])


def virtual(h5py, file, outside):
    del file["features"]
    layout = h5py.VirtualLayout((40, 8), "f4")
    layout[:] = h5py.VirtualSource(outside, "features", (40, 8))
    file.create_virtual_dataset("features", layout)


def linked(h5py, file, outside):
    del file["ids"]
    file["ids"] = h5py.ExternalLink(outside, "ids")


def soft(h5py, file, outside):
    file.move("features", "deep/features")
    file["features"] = h5py.SoftLink("/deep/features")


def grown(h5py, file, outside):
    """Compressed numbers that were never written take no place in the file."""
    for key, shape in (("ids", (10**9,)), ("features", (10**9, 8))):
        del file[key]
        file.create_dataset(key, shape, "u1", chunks=(1 << 20, *shape[1:]), compression="gzip")


HDF5 = {one.__name__: one for one in (external, virtual, linked, soft, grown)}


def broken(root, how):
    """A site whose features are wrong in one way."""
    ids, values = [f"p{i}" for i in range(40)], np.ones((40, 8), np.float32)
    table(root / "east.csv", ids, np.arange(40) % 2)
    place = root / "uni" / "east.npz"
    if how == "nan":
        values[3, 2] = np.nan
    if how == "ids":
        ids = [f"q{i}" for i in range(40)]
    write(place, "npz", ids, values, sha256=OTHER if how == "encoder" else SHA)
    if how == "pickle":
        np.savez(place, ids=np.array(ids, dtype=object), features=values, encoder="uni", encoder_sha256=SHA)
    elif how == "pkl":
        place.rename(root / "uni" / "east")
        (root / "uni" / "east").unlink()
        (root / "uni" / "east").mkdir()
        (root / "uni" / "east" / "p0.pkl").write_bytes(pickle.dumps(values))
    elif how == "unnamed":
        np.savez(place, ids=np.array(ids), features=values)
    elif how == "width":
        write(place, "npz", ids, values[:, :5])
    elif how == "text":
        np.savez(place, ids=np.array(ids), features=values.astype("U8"), encoder="uni", encoder_sha256=SHA)
    elif how == "twice":
        write(root / "uni" / "east.npy", "npy", ids, values)
    elif how == "none":
        place.unlink()
    elif how == "link":
        place.rename(root.parent / "outside.npz")
        place.symlink_to(root.parent / "outside.npz")
    elif how in HDF5:
        h5py = pytest.importorskip("h5py")
        place.unlink()
        outside = root.parent / "outside.h5"
        for path in (outside, place.with_suffix(".h5")):
            write(path, "h5", ids, values)
        with h5py.File(place.with_suffix(".h5"), "a") as file:
            HDF5[how](h5py, file, str(outside))
    elif how == "damaged":
        place.write_bytes(place.read_bytes()[:200])


@each(
    ("how", "code", "words"),
    [
        ("nan", "nonfinite", "features uni/east: expected finite numbers, got NaN"),
        ("ids", "missing_file", "patient_id: 40 of 40 rows have an id without features, first row 0"),
        ("encoder", "encoder", f"expected encoder uni:8:{SHA}, got uni:8:{OTHER}"),
        ("width", "encoder", f"expected encoder uni:8:{SHA}, got uni:5:{SHA}"),
        ("pickle", "unreadable", "it holds pickled objects, which are not loaded"),
        ("pkl", "unreadable", "expected .npz, .npy, .h5, .hdf5, .parquet, got .pkl"),
        ("unnamed", "encoder", 'expected encoder.json beside it with "name" and "sha256"'),
        ("text", "shape", "expected an array 'features' of numbers"),
        ("twice", "missing_file", "expected one file (.npz, .npy, .h5, .hdf5, .parquet) or a folder, got 2"),
        ("none", "missing_file", "or a folder, got 0"),
        ("link", "link_outside", "east.npz is a symbolic link out of the data root"),
        ("damaged", "unreadable", "features east.npz: cannot be read"),
        ("external", "link_outside", "features east.h5: expected data in the file, 'features' is a link"),
        ("virtual", "link_outside", "features east.h5: expected data in the file, 'features' is a link"),
        ("linked", "link_outside", "features east.h5: expected data in the file, 'ids' is a link"),
        ("soft", "link_outside", "features east.h5: expected data in the file, 'features' is a link"),
        ("grown", "unreadable", "features east.h5: expected at most 50,000,000 cells, got 1,000,000,000"),
    ],
)
def test_bad_features_are_one_line_and_their_code_alone_leaves(how, code, words, tmp_path):
    (tmp_path / "data").mkdir()
    broken(tmp_path / "data", how)
    from fairflare.engine.setup import tasks

    own = SiteConfig(data_root=str(tmp_path / "data"), datalist="east.csv")
    for pooling in ("mean", "attention"):
        options = {"vectors": "uni", "encoder": f"uni:8:{SHA}", "pooling": pooling, "site_names": "east"}
        task = tasks.load(TASK, None, label="died", labels="no,yes", **options)
        found, data = preflight(task, "east", own, task.grouping("label"), 10)
        errors = [one for one in found if one.level == "error"]
        assert data is None and errors[0].code == code, found
        assert words in errors[0].text and "\n" not in errors[0].text


def test_no_bag_and_no_table_of_features_grows_without_end_when_it_is_read(tmp_path, monkeypatch):
    h5py, pyarrow = pytest.importorskip("h5py"), pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "uni" / "east").mkdir(parents=True)
    with h5py.File(tmp_path / "uni" / "east" / "slide.h5", "w") as file:
        file.create_dataset("features", (2 * 10**9, 8), "u1", chunks=(1 << 20, 8), compression="gzip")
        file.attrs["encoder"], file.attrs["encoder_sha256"] = "uni", SHA
    with pytest.raises(DataError, match="features uni/east: expected at most 8,589,934,592 bytes"):
        Bags(tmp_path, "uni", "east").bag("slide")
    told = {"encoder": "uni", "encoder_sha256": SHA}
    table = pyarrow.table({"id": ["p0"] * 40, "features": [[0.0] * 1000] * 40}).replace_schema_metadata(told)
    parquet.write_table(table, tmp_path / "uni" / "west.parquet")
    assert len(Bags(tmp_path, "uni", "west").bag("p0")) == 40
    monkeypatch.setattr(limits, "LIMITS", limits.Limits(vectors=100_000))
    with pytest.raises(DataError, match="features west.parquet: expected at most 100,000 bytes"):
        Bags(tmp_path, "uni", "west")


def test_two_encoders_are_refused_before_anything_starts(tmp_path):
    for site, sha256 in (("east", SHA), ("west", OTHER)):
        ids = [f"p{i}" for i in range(40)]
        write(tmp_path / "uni" / f"{site}.npz", "npz", ids, np.ones((40, 8), np.float32), sha256=sha256)
        table(tmp_path / f"{site}.csv", ids, np.arange(40) % 2)
    with pytest.raises(UserError, match=f"encoder of west: expected uni:8:{SHA}, as east has, got"):
        configured(tmp_path, sites=("east", "west"))
    (tmp_path / "uni" / "both").mkdir()
    write(tmp_path / "uni" / "both" / "a.npz", "npz", ["a"], np.ones((1, 8), np.float32))
    write(tmp_path / "uni" / "both" / "b.npz", "npz", ["b"], np.ones((1, 8), np.float32), encoder="conch")
    with pytest.raises(DataError, match="expected one encoder, got"):
        Bags(tmp_path, "uni", "both")


@each(
    ("values", "words"),
    [
        ({"encoder": "uni"}, "encoder: expected NAME:NUMBERS:SHA256 of its weights"),
        ({"vectors": "../uni"}, "vectors: expected a folder's name"),
        ({"vectors": "", "encoder": f"uni:8:{SHA}"}, "vectors: expected a folder of features beside encoder"),
        ({"pooling": "attention", "model": "regression"}, "pooling: expected mean or max"),
    ],
)
def test_options_that_do_not_fit_are_one_line(values, words, folder):
    with pytest.raises(UserError) as refused:
        configured(folder, **values)
    assert words in str(refused.value) and "\n" not in str(refused.value)


SCRIPT = """
import resource, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_features import configured, results
results(configured(Path({root!r}), sites=("east", "north"), rounds=1, pooling="attention", solo=False), Path({out!r}))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_two_thousand_bags_of_500_instances_stay_under_4_gb(tmp_path):
    h5py, each = pytest.importorskip("h5py"), 1000
    for k, site in enumerate(("east", "north")):
        rng, ids = np.random.default_rng(k), [f"p{i}" for i in range(each)]
        (tmp_path / "uni").mkdir(exist_ok=True)
        with h5py.File(tmp_path / "uni" / f"{site}.h5", "w") as file:
            file["ids"] = np.repeat(np.array(ids, dtype="S8"), 500)
            values = file.create_dataset("features", (each * 500, 768), "f4", chunks=(500, 768))
            file.attrs["encoder"], file.attrs["encoder_sha256"] = "uni", SHA
            for i in range(each):
                values[i * 500 : (i + 1) * 500] = rng.random((500, 768), dtype=np.float32)
        table(tmp_path / f"{site}.csv", ids, np.arange(each) % 2)
    script = SCRIPT.format(
        paths=[str(Path(__file__).parent), *filter(None, sys.path)], root=str(tmp_path), out=str(tmp_path / "run")
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    print(f"{int(done.stdout.split()[-1]) / 2**20:.2f} GB")
    assert int(done.stdout.split()[-1]) < 4 * 2**20  # kilobytes
