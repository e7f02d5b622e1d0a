# SPDX-License-Identifier: Apache-2.0
"""FedUFO (Zhang et al., Patterns 2024): disparity over sites and groups of patients on tables of health records."""

from __future__ import annotations

from fairflare.papers.declaration import Better, Column, Data, Exhibit, Row, Table, on, panels, paper, table

SUPPORT2 = "9,105 patients of SUPPORT2 in two shares with skewed outcomes"
TWO = {"n_sites": "2"}
COVID = Data(
    key="covid",
    title="COVID-19 Brazil",
    task="covid-brazil:dirichlet",
    needs=("covid_brazil.csv",),
    stand_in="support2:dirichlet",
    words=SUPPORT2,
    other={**TWO, "alpha": "0.5"},
)
FETAL = Data(
    key="fetal",
    title="Fetal monitoring (CTG)",
    task="ctg:small",
    needs=("CTG.xls",),
    stand_in="support2:dirichlet",
    words=f"{SUPPORT2} (alpha 10000: hardly any skew)",
    settings={"label": "CLASS"},
    other={**TWO, "alpha": "10000"},
)
SUPPORT = Data(
    key="support",
    title="SUPPORT",
    task="support:small",
    needs=("support.xlsx",),
    stand_in="support2:dirichlet",
    words=f"{SUPPORT2} (alpha 1)",
    other={**TWO, "alpha": "1"},
)
SEER = Data(
    key="seer",
    title="SEER",
    task="seer-prostate:small",
    needs=("seer",),
    stand_in="support2:dirichlet",
    words=f"{SUPPORT2} (alpha 10)",
    other={**TWO, "alpha": "10"},
)
RACE = {"group_by": "label+race"}
CLEAN = (
    "Columns that hold the outcome are left out of the features, so that the paper's accuracies cannot be had; local "
    "training is SGD, under which weights on the loss act, where the paper has Adam, which undoes them."
)
METRIC = "Disparity is the sample standard deviation (ddof 1) of accuracies, of a group pooled over sites. " + CLEAN
LEVELS = (
    Column("overall", "Overall accuracy", "over-groups", {"which": "overall"}, digits=4),
    Column("group", "group", "groups", digits=4),
    Column("attribute", "Disparity over groups", "over-groups", {"which": "disparity"}, better="lower", digits=4),
    Column("client", "Disparity over clients", "over-groups", {"which": "sites"}, better="lower", digits=4),
)
OTHERS = (
    Row("global", "Global", "pooled"),
    Row("split", "Split", "solo"),
    Row("fedavg", "FedAvg", "fedavg:weighting=uniform"),
    Row("afl", "AFL", "afl:average=none"),
    Row("qfedavg", "q-FedAvg", "qfedavg:q=0.0005"),
    Row("fairfed", "FairFed", "fairfed:beta=0.1"),
    Row("dipole", "DIPOLE (Poulain et al.)", "fairfedavg:beta=0.1"),
)
UFO = (
    Row("c", "FedUFO_c", "fedufo:level=client"),
    Row("a", "FedUFO_a", "fedufo:level=attribute"),
    Row("m", "FedUFO_m", "fedufo:level=multi"),
    Row("u", "FedUFO_u", "fedufo:level=unknown"),
)
METHODS = (*OTHERS, *UFO)
FEDERATED = tuple(row for row in METHODS if row.key not in ("global", "split"))
ALPHAS = ("0.1", "0.5", "1", "10")


def results(number: str, data: Data) -> Exhibit:
    words = f"Methods on {data.title}"
    return table(number, f"{words}, by group and by client", words, METHODS, on(LEVELS, data), note=METRIC)


def both_levels(number: str, title: str, words: str, which: str, better: Better) -> Exhibit:
    """The harmonic mean of two levels on several data sets."""
    column = Column("harmonic", "Harmonic", "over-groups", {"which": which}, better, 4)
    return table(number, title, words, FEDERATED, on((column,), COVID, FETAL, SUPPORT), note=METRIC)


def dealt(number: str, title: str, words: str, which: str, better: Better) -> Exhibit:
    """Models that were trained at one skew, measured on test patients dealt at others."""
    columns = tuple(
        Column(f"at-{a}", f"test alpha {a}", "elsewhere", {"options": f"alpha={a}", "which": which}, better, 4)
        for a in ALPHAS
    )
    rows = tuple(
        Row(f"{row.key}-{a}", f"{row.title}, trained at alpha {a}", row.label, group=row.title, values={"alpha": a})
        for row in (OTHERS[2], UFO[2])
        for a in ALPHAS
    )
    return table(number, title, words, rows, on(columns, COVID), note=f"AUC of each site's test patients. {CLEAN}")


def opportunity(number: str, title: str, words: str, which: str, better: Better) -> Exhibit:
    column = Column(which, words, "opportunity", {"which": which}, better, 4)
    note = f"True-positive rates of those who died, over race; groups below the minimum count are left out. {CLEAN}"
    return table(number, title, words, FEDERATED, on((column, LEVELS[0]), COVID), values=RACE, note=note)


def over_rounds(which: str, words: str) -> Table:
    title = f"AUC of the received model on the validation splits, {words}"
    blocks = on((Column("round", "round", "rounds", {"which": which}),), COVID)
    return Table(f"3-{which}", title, (OTHERS[2], *UFO), blocks, draw="rounds", axes=("round", "AUC"))


def swept(key: str, words: str, *values: str) -> Table:
    rows = tuple(Row(f"{key}-{v}", v, f"fedufo:level=multi,rule.{key}={v}") for v in values)
    columns = tuple(Column(w, w, "over-groups", {"which": w}, digits=4) for w in ("overall", "disparity"))
    return Table(key, words, rows, on(columns, COVID), draw="curve", axes=(key, "accuracy, disparity"), stub=key)


PAPER = paper(
    "fedufo",
    "FedUFO (Zhang et al., Unified fair federated learning for digital healthcare, Patterns 2024)",
    *(results(str(number), data) for number, data in enumerate((COVID, FETAL, SUPPORT, SEER), 1)),
    both_levels(
        "5",
        "Disparities of both levels in one number",
        "a b / (a + b) of the disparities over clients and groups",
        "harmonic-printed",
        "lower",
    ),
    both_levels(
        "6",
        "Accuracies of both levels in one number",
        "2 a b / (a + b) of the mean accuracies over clients and groups",
        "harmonic-accuracy",
        "higher",
    ),
    dealt("7", "Trained at one skew, tested at others: mean", "Mean over clients", "mean", "higher"),
    dealt("8", "Trained at one skew, tested at others: disparity", "Disparity over clients", "std_sample", "lower"),
    opportunity(
        "9", "Equal opportunity: the group that is recognised worst", "Least true-positive rate", "worst_tpr", "higher"
    ),
    opportunity("10", "Equal opportunity: the gap", "Gap between true-positive rates", "gap", "lower"),
    table(
        "11",
        "Bytes and seconds of a round",
        "Communication and time",
        FEDERATED,
        on(
            (
                Column("up", "Bytes up", "bytes", better="lower", digits=0),
                Column("down", "Bytes down", "bytes", {"way": "down"}, better="lower", digits=0),
                Column("seconds", "Seconds per round", "seconds", better="lower"),
            ),
            COVID,
        ),
    ),
    panels(
        "3",
        "AUC over the rounds",
        over_rounds("mean", "mean over clients"),
        over_rounds("worst", "worst client"),
    ),
    panels(
        "4",
        "The hyper-parameters of FedUFO_m",
        swept("gamma", "The step of the weights", "0.05", "0.1", "0.5", "1", "2"),
        swept("beta", "Clients against groups", "0.1", "0.3", "0.5", "0.7", "0.9"),
        swept("radius", "The radius of the ball", "0", "0.1", "0.5", "1"),
    ),
)
