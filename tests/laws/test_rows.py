# SPDX-License-Identifier: Apache-2.0
"""Nothing deals, resamples or makes an interval of rows without asking whose they are, but what is signed here."""

import ast
from pathlib import Path

import fairflare

PACKAGE = Path(fairflare.__file__).parent
DEALS = {"KFold", "StratifiedKFold", "ShuffleSplit", "StratifiedShuffleSplit", "LeaveOneOut", "train_test_split"}
DEALS |= {"cross_val_score", "cross_val_predict", "GridSearchCV", "bootstrap", "resamples"}
DRAWS = {"permutation", "permuted", "shuffle", "randperm", "integers", "randint", "choice"}
INTERVALS = {"of_share", "of_mean", "of_positive_mean", "of_recalls", "of_auc", "of_pairs", "line_with_interval"}
INTERVALS |= {"concordance_error", "percentile_interval", "sem", "ttest_1samp", "ttest_rel", "ttest_ind"}
WORDS = ("patient", "whose", "owner", "groups")
SIGNED = {
    "datasets/": "data sets that are made, or that hold a row a patient",
    "aggregators/bounded.py:_heard": "sites in a random order",
    "data/readers/volumes.py:training": "the order of an epoch",
    "data/tensors.py:_order": "the order of an epoch",
    "data/table_fingerprint.py:_pooled": "a spread that scales a column",
    "engine/benefit.py:_told": "of resamples that ``measured`` has drawn by patient",
    "engine/norms.py:size_of": "a norm",
    "functional/decision.py:scale": "over hospitals",
    "functional/decision.py:average": "over hospitals",
    "decision/estimands.py:standard_error": "of a variance by patient",
    "decision/validation.py:minimum_patients": "a sample that is planned, of one row a patient",
    "functional/novelty.py:novelty": "a cosine",
    "functional/intervals.py:_weighted": "of values that are one a patient",
    "functional/likelihood.py:marginal": "a step of Laplace's method",
    "functional/simplex.py:in_ball": "weights of sites",
    "functional/simplex.py:in_ball_reference": "weights of sites",
    "functional/slopes.py:along": "MacKay's approximation; a hospital with repeated patients has no such regression",
    "inference/export.py:_compare": "made-up inputs of two networks",
    "privacy/differential_privacy.py:share": "noise of a site",
    "privacy/referee.py:sketch": "signs of a projection",
    "probes/cka.py:cka": "a cosine",
    "report/clinical.py:net_benefit": "from counts that left the site, where rows are not told apart; docs say so",
    "report/fairness.py:std": "over sites",
    "report/fairness.py:mean_ci": "over seeds",
    "report/fairness.py:within": "a quantile",
    "report/fairness.py:hierarchical": "over seeds, of resamples of patients that ``comparison`` draws",
    "report/fairness.py:effect_size": "over seeds",
    "report/fairness.py:bootstrap_ci": "over sites",
    "report/sanity_checks.py:_trend": "over rounds",
    "tasks/planning.py:_outcome": "a spread that scales an outcome",
    "testing/tasks.py:_made_up": "made-up cases",
    "testing/tasks.py:_check_on": "made-up cases",
}
"""File and function -> why rows are no patients there, or do not matter."""


def name_of(call):
    """Of a function that is called; a method's name with a point in front."""
    return f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_error(node):
    """Whether something is divided by a root, as a standard error is, or a root taken of what is divided."""
    root = isinstance(node, ast.Call) and name_of(node).strip(".") == "sqrt"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        half = isinstance(node.right, ast.BinOp) and getattr(node.right.right, "value", 0) == 0.5
        return half or (isinstance(node.right, ast.Call) and name_of(node.right).strip(".") == "sqrt")
    return root and any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div) for one in node.args)


def by_row(tree):
    """Function -> what it does with rows, of functions that name no patient."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = {}
    for node in ast.walk(tree):
        what = name_of(node) if isinstance(node, ast.Call) else ""
        known = what.strip(".") in DEALS | INTERVALS or (what[:1] == "." and what[1:] in DRAWS)
        if not known and not is_error(node):
            continue
        inside = node
        while not isinstance(inside, ast.FunctionDef | ast.Module):
            inside = parents[inside]
        names = {one.id for one in ast.walk(inside) if isinstance(one, ast.Name)}
        names |= {one.arg for one in ast.walk(inside) if isinstance(one, ast.arg | ast.keyword) and one.arg}
        names |= {one.attr for one in ast.walk(inside) if isinstance(one, ast.Attribute)}
        if not any(word in name.lower() for name in names for word in WORDS):
            found.setdefault(getattr(inside, "name", "module"), set()).add(what.strip(".") if known else "error")
    return found


def test_the_walk_finds_each_way():
    made = "from x import y\n" + "\n".join(
        f"def f{k}(n, rng):\n    return {text}"
        for k, text in enumerate(
            ("rng.permutation(n)", "KFold(5)", "n.std() / np.sqrt(n)", "n / n**0.5", "of_mean(n)", "sqrt(n / 2)")
        )
    )
    assert [*by_row(ast.parse(made))] == ["f0", "f1", "f2", "f3", "f4", "f5"]
    assert not by_row(ast.parse(made.replace("(n, rng)", "(n, rng, patients)")))


def test_rows_are_taken_for_patients_where_it_is_signed_and_nowhere_else():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for function, ways in by_row(ast.parse(path.read_text(encoding="utf-8"))).items():
            found[f"{file}:{function}"] = ways
    unsigned = {place: ways for place, ways in found.items() if not {place, place.split("/")[0] + "/"} & SIGNED.keys()}
    assert not unsigned, unsigned
    used = {one for place in found for one in (place, place.split("/")[0] + "/")}
    assert SIGNED.keys() <= used, f"signed and not there: {sorted(SIGNED.keys() - used)}"
