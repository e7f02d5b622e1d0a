# SPDX-License-Identifier: Apache-2.0
"""What a table's columns become: categories, yes and no, dates, gaps, numbers of a size; and what sites agree on."""

import json

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import DataError, UserError
from fairflare.core.findings import CODES
from fairflare.data.readers.table_features import as_days
from fairflare.data.site_config import SiteConfig
from fairflare.data.table_columns import features_of, names_of, read_columns
from fairflare.data.table_fingerprint import SILENT, TableFingerprint
from fairflare.engine.setup import tasks
from fairflare.inference.predict import of_table
from fairflare.tasks.fingerprint import Fingerprint, fingerprint
from fairflare.tasks.planning import cautions, plan

HEADER = "icd,smoker,in,out,crp,label"
ROWS = [
    "A,Yes,2020-01-01,2020-01-03,1.5,0",
    "B,n,2020-01-31,01.03.2020,,1",
    "1.0,NO,,2020-01-05,3,0",
    ",,2020-02-01,,2,1",
]
COLUMNS = {
    "icd": {"kind": "category", "levels": ["A", "1.0"], "missing": True},
    "smoker": {"kind": "yes_no", "yes": ["yes"], "no": ["No", "n"], "missing": True},
    "out": {"kind": "days", "since": "in", "missing": True},
    "crp": {"kind": "number", "missing": True},
}
NAMES = ["icd", "smoker", "out", "crp"]
SCALING = {"fill": [2.0, 2.0], "mean": [0.0, 0.0], "std": [1.0, 1.0]}


def task_of(folder, rows=ROWS, columns=COLUMNS, times=5, header=HEADER, **options):
    (folder / "a.csv").write_text("\n".join([header, *rows * times]) + "\n")
    given = {"features": ",".join(NAMES), "scaling": json.dumps(SCALING), **options}
    own = {"datalists": str(folder), "site_names": "a"}
    return tasks.load("tabular", **own, columns=json.dumps(columns) if columns else "", **given)


def everything(data):
    return torch.cat([data.splits[name].inputs for name in ("train", "val", "test")])


def test_a_column_is_as_many_features_as_it_takes(tmp_path):
    inputs = task_of(tmp_path).table_inputs()
    names = [one.name for one in (*inputs.numbers, *inputs.plain)]
    assert names == [
        "out days since in", "crp", "icd=A", "icd=1", "icd other", "icd missing", "smoker=yes", "smoker missing",
        "out missing", "crp missing",
    ]  # fmt: skip
    found = {tuple(row) for row in everything(task_of(tmp_path).site_data("a")).tolist()}
    assert found == {
        (2, 1.5, 1, 0, 0, 0, 1, 0, 0, 0),
        (30, 2, 0, 0, 1, 0, 0, 0, 0, 1),
        (2, 3, 0, 1, 0, 0, 0, 0, 1, 0),
        (2, 2, 0, 0, 0, 1, 0, 1, 1, 0),
    }


def test_codes_for_missing_are_empty_cells_in_training_fingerprint_and_a_new_table(tmp_path):
    coded = {name: {**one, "codes": ["999.0", "9"]} for name, one in COLUMNS.items()}
    empty, holds = (task_of(tmp_path, columns=own) for own in (COLUMNS, coded))
    before = everything(empty.site_data("a"))
    task_of(tmp_path, ["B,n,2020-01-31,01.03.2020,999,1", "999,9.0,2020-02-01,999,2,1"] * 20)
    found = everything(holds.site_data("a"))
    assert {tuple(row) for row in found.tolist()} < {tuple(row) for row in before.tolist()}
    assert "999" not in fingerprint(holds, "a", None, 1).table.levels["icd"]
    inputs = holds.table_inputs()
    assert of_table(inputs, {"icd": ["999", "9.0", "A"]}, np.empty((0, 2)), inputs.fixed) == []


@each(
    ("row", "message"),
    [
        ("A,perhaps,2020-01-01,2020-01-03,1,0", "smoker: expected one of n, no, yes, got 'perhaps'"),
        ("A,yes,2020-01-01,03/04/2020,1,0", "out: expected a date as YYYY-MM-DD, got '03/04/2020'"),
        ("A,yes,2020-13-01,2020-01-03,1,0", "in: expected a date as YYYY-MM-DD, got '2020-13-01'"),
        ("A,yes,2020-01-01,2020-01-03,1e308,0", "crp: expected a number below 1e30 in size, got '1e308'"),
        ("A,yes,2020-01-01,2020-01-03,-1e30,0", "crp: expected a number below 1e30 in size, got '-1e30'"),
        ("A,yes,2020-01-01,2020-01-03,1_0,0", "crp: expected a number, got '1_0'"),
        (f"A,yes,2020-01-01,2020-01-03,{'x' * 9999},0", "crp: expected a number, got 'xxx"),
    ],
)
def test_a_cell_that_is_not_of_its_columns_kind_is_named(row, message, tmp_path):
    with pytest.raises(DataError, match=r"table a.csv: row \d+: ") as error:
        task_of(tmp_path, [*ROWS, row]).site_data("a")
    assert message in str(error.value) and len(str(error.value)) < 250


@each(
    ("columns", "message"),
    [
        ("[1]", "columns: expected a JSON object"),
        ("{", "columns: expected JSON"),
        ({"age": {"kind": "number"}}, "columns: expected names that are among the features, got 'age'"),
        ({"icd": {"kind": "text"}}, "kind: expected one of number, category, yes_no, days, got 'text'"),
        ({"icd": {"kind": "category", "since": "x"}}, "unknown key 'since'"),
        ({"icd": {"kind": "category", "levels": ["a", "a"]}}, "expected at most 1000 different ones"),
        ({"icd": {"kind": "category", "levels": [""]}}, "expected a list of texts"),
        ({"icd": {"kind": "yes_no", "yes": ["y"], "no": ["Y"]}}, "different words for yes and no"),
        ({"out": {"kind": "days"}}, "since: expected a date column's name"),
        ({"icd": {"kind": "category", "missing": "yes"}}, "missing: expected true or false"),
    ],
)
def test_columns_that_cannot_be_are_refused(columns, message, tmp_path):
    text = columns if isinstance(columns, str) else json.dumps(columns)
    with pytest.raises(UserError) as error:
        read_columns(text, NAMES)
    assert message in str(error.value)


def test_scaling_and_levels_fit_the_features(tmp_path):
    with pytest.raises(UserError, match="scaling: expected 2 finite numbers as 'fill'"):
        task_of(tmp_path, scaling=json.dumps({"fill": [1], "mean": [1], "std": [1]}))
    with pytest.raises(UserError, match="scaling: expected site or JSON, got 'pooled'"):
        task_of(tmp_path, scaling="pooled")
    task = task_of(tmp_path, columns={"icd": {"kind": "category"}}, features="icd", scaling="")
    for ask in (task.network, task.table_inputs, lambda: task.site_data("a")):
        with pytest.raises(UserError, match="columns: 'icd': expected levels; `fairflare plan` agrees"):
            ask()


def test_names_with_commas_stand_in_quotes(tmp_path):
    assert names_of('age, "Na, mmol/l",crp') == ["age", "Na, mmol/l", "crp"] and names_of(" ") == []
    for text in ('age,"crp', "age,age"):
        with pytest.raises(UserError, match="^features: expected"):
            names_of(text)
    rows = [f"{k},{k % 2}" for k in range(20)]
    task = task_of(tmp_path, rows, None, 1, '"Na, mmol/l",label', features='"Na, mmol/l"', scaling="site")
    assert everything(task.site_data("a")).shape == (20, 1)


def test_days_are_counted_over_leap_days_and_times():
    assert np.diff(as_days("t", "d", ["2020-02-28", "1.3.2020", "2020-03-01 12:00:00"])).tolist() == [2.0, 0.5]
    assert np.isnan(as_days("t", "d", [""])[0])


def own_fingerprint(folder, min_count=10, **config):
    task = task_of(folder, times=40, columns={**COLUMNS, "icd": {"kind": "category"}}, scaling="")
    return fingerprint(task, "a", SiteConfig(data_root=str(folder), datalist="a.csv", **config), min_count)


def test_what_is_of_few_rows_does_not_leave(tmp_path):
    found = own_fingerprint(tmp_path)
    assert found.table.levels == {"icd": ("1", "A", "B")}
    n, mean, _ = found.table.numbers["crp"]
    assert 10 <= n <= found.n_train and 1 < mean < 3
    assert found.n_train - n == 0 or found.n_train - n >= 10
    assert Fingerprint.from_json(json.loads(json.dumps(found.to_json())), "a") == found
    many = own_fingerprint(tmp_path, min_count=100)
    assert many.table.levels == {"icd": ()} and many.table.numbers == {}
    assert own_fingerprint(tmp_path, min_count=None).table is None


def test_a_site_of_secure_sums_alone_tells_no_sum_of_its_own(tmp_path):
    found = own_fingerprint(tmp_path, secure_sum=True)
    assert found.table.numbers == {} and found.table.levels["icd"] == ("1", "A", "B")


def prints(**numbers):
    return {
        site: Fingerprint(50, table=TableFingerprint(("age", "crp"), {}, values)) for site, values in numbers.items()
    }


def test_mean_and_spread_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(60, 5, 40), "b": rng.normal(70, 9, 400), "c": rng.normal(50, 1, 11)}
    sites = prints(
        **{s: {"age": (len(x), float(x.mean()), float(x.std())), "crp": (9, 1.0, 0.0)} for s, x in rows.items()}
    )
    found = json.loads({one.setting: one.value for one in plan("tabular", sites)}["task.scaling"])
    every = np.concatenate(list(rows.values()))
    assert found["mean"][0] == pytest.approx(every.mean(), rel=1e-8) == found["fill"][0]
    assert found["std"] == [pytest.approx(every.std(), rel=1e-8), SILENT]
    backwards = dict(reversed(list(sites.items())))
    assert json.loads({one.setting: one.value for one in plan("tabular", backwards)}["task.scaling"]) == found


def test_a_number_that_no_site_may_tell_does_not_count():
    sites = prints(a={"age": (50, 60.0, 5.0)}, b={})
    found = json.loads({one.setting: one.value for one in plan("tabular", sites)}["task.scaling"])
    assert found["std"] == [5.0, SILENT] and found["mean"] == [60.0, 0.0]
    said = cautions(sites)
    assert said == [
        "no site has enough values to tell a mean of crp: they do not count",
        "b: no mean or spread leaves, so the scaling is that of the other sites",
    ]


CONVERTS = 'If these are not the same, lines of the file of a convert: scale: {"crp": 0.01}'


def test_means_of_other_units_are_said():
    """Creatinine in mg/dL and in umol/L, age of children and adults; CRP and age as hospitals differ."""
    for crp, age, said in (
        ((1.1, 0.8), (60.0, 12.0), "crp: a mean of 1.1 at b and of 97 at a: are the units the same?"),
        ((97.0, 70.0), (8.0, 4.0), "age: a mean of 8 at b and of 65 at a: are the units the same?"),
        ((45.0, 60.0), (55.0, 14.0), ""),
    ):
        sites = prints(a={"age": (50, 65.0, 12.0), "crp": (50, 97.0, 70.0)}, b={"age": (9, *age), "crp": (9, *crp)})
        assert cautions(sites) == [said, CONVERTS][: bool(said) + said.startswith("crp")]


def test_levels_are_those_of_every_site_in_natural_order():
    known = {"icd": read_columns('{"icd": {"kind": "category"}}', ["icd"])["icd"]}
    sites = {
        site: Fingerprint(50, table=TableFingerprint(("icd",), known, {}, {"icd": levels}))
        for site, levels in {"a": ("B10", "B9"), "b": ("B2", "b9", "B9")}.items()
    }
    found = {one.setting: one.value for one in plan("tabular", sites)}
    assert json.loads(found["task.columns"]) == {"icd": {"kind": "category", "levels": ["B2", "B9", "B10", "b9"]}}
    assert cautions(sites) == ["column icd: 'B9' and 'b9' are different levels"]
    assert len(features_of(["icd"], read_columns(found["task.columns"], ["icd"]))[1]) == 5


def test_sites_with_other_features_make_no_plan():
    sites = prints(a={}) | {"b": Fingerprint(50, table=TableFingerprint(("age",)))}
    with pytest.raises(UserError, match="expected the same features at a and b; they differ in crp"):
        plan("tabular", sites)


@each(
    "change",
    [
        {"numbers": {"age": [0, 1.0, 1.0]}},
        {"numbers": {"age": [5, 1.0, -1.0]}},
        {"numbers": {"age": [5, float("1e31"), 1.0]}},
        {"numbers": {"other": [5, 1.0, 1.0]}},
        {"levels": {"age": "ab"}},
        {"levels": {"other": []}},
        {"columns": {"age": {"kind": "?"}}},
        {"features": "age"},
        {"rows": []},
    ],
)
def test_a_tables_fingerprint_from_elsewhere_is_checked(change):
    good = prints(a={"age": (5, 1.0, 1.0)})["a"].to_json()
    assert Fingerprint.from_json(good, "b").table.numbers == {"age": (5, 1.0, 1.0)}
    with pytest.raises(UserError, match="fingerprint of b"):
        Fingerprint.from_json({**good, "table": {**good["table"], **change}}, "b")
    with pytest.raises(UserError, match="table: expected the keys columns, dates, features, levels, numbers"):
        TableFingerprint.from_json({}, "b")


def test_no_option_is_what_flare_takes_for_a_variable(tmp_path):
    """FLARE reads a text in one pair of braces as the name of a variable, and stops where there is none."""
    task = task_of(tmp_path, columns=None, features="crp", scaling='{"fill": [0], "mean": [0], "std": [1]}')
    assert task.scaling.count("{") == 2 and task.table_inputs().fixed.to_json() == {
        "fill": [0.0],
        "mean": [0.0],
        "std": [1.0],
    }
    assert tasks.load("tabular", columns="{}").columns == ""


def test_what_is_wrong_with_a_table_may_leave_the_site_as_a_code(tmp_path):
    """A code that is not on the list of those that may leave would be blamed on the filter in place of the table."""
    faults = {
        "column": "a,a,label\n1,2,0\n",
        "unreadable": "a,label\n1,2,3\n",
        "number": "a,label\n" + "1e308,0\n" * 12,
    }
    for code, content in faults.items():
        (tmp_path / "a.csv").write_text(content)
        task = tasks.load("tabular", datalists=str(tmp_path), site_names="a", features="a")
        with pytest.raises(DataError) as error:
            task.site_data("a")
        assert error.value.code == code and code in CODES


def test_a_long_cell_is_not_printed_whole(tmp_path):
    long = "x" * 30_000
    for row, said in ((f"1,{long},train", "label: expected 0, 1, got 'xxx"), (f"1,0,{long}", "split: expected train")):
        (tmp_path / "a.csv").write_text("a,label,split\n" + f"{row}\n" + "1,0,train\n1,1,test\n" * 12)
        task = tasks.load("tabular", datalists=str(tmp_path), site_names="a", features="a")
        with pytest.raises(DataError) as error:
            task.site_data("a")
        assert said in str(error.value) and len(str(error.value)) < 250
