# SPDX-License-Identifier: Apache-2.0
"""FedISM+ (Wu et al., 2025): images of good and poor quality, balanced accuracy and one-vs-one AUC on both."""

from __future__ import annotations

from fairflare.papers.declaration import Column, Data, Exhibit, Only, Row, Table, figure, on, panels, paper, table

PHANTOM = "simulated haemorrhages in real brain anatomy, eight sites of which two have poor images"
ICH = Data(
    key="ich",
    title="RSNA ICH, Gaussian noise",
    task="rsna-ich:paper",
    needs=("ICH_20",),
    stand_in="ich-phantom:small",
    words=f"{PHANTOM} (Gaussian noise)",
)
ISIC = Data(
    key="isic",
    title="ISIC 2019, motion blur",
    task="isic2019:paper",
    needs=("ISIC2019_20",),
    stand_in="ich-phantom:small",
    words=f"{PHANTOM} (motion blur)",
    other={"corruption": "motion"},
)


CONDITIONS = tuple(
    Column(f"{which}-{key}", f"{which} {words}", "condition", {"which": which, "metric": metric}, digits=2, scale=100)
    for which in ("clean", "corrupted")
    for key, words, metric in (("acc", "ACC", "balanced_accuracy"), ("auc", "AUC", "auc_ovo"))
)
"""Both metrics on the clean and on the corrupted test set."""
LAST = CONDITIONS[0], CONDITIONS[2]
"""Balanced accuracy on either test set."""
FIFTEEN = (
    "ACC is balanced accuracy and AUC the macro average of one-vs-one AUC (%), on shared test sets; over three seeds "
    "and the last five rounds, as the paper prints them."
)
GRID = "q of q-FedAvg and beta of FairFed are the paper's grids, of which it prints the best."
OURS = (
    Row("fedism", "FedISM", "fedism"),
    Row("fedism-plus-s", "FedISM+ (S)", "fedism-plus:state=S"),
    Row("fedism-plus-l", "FedISM+ (L)", "fedism-plus:state=L"),
)
OTHERS = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("afl", "Agnostic-FL", "afl:argmax=true,average=none"),
    *(Row(f"q-{q}", f"q-FedAvg, q = {q}", f"qffl:q={q}") for q in ("0.5", "1", "2", "5")),
    *(
        Row(f"fairfed-{beta}", f"FairFed, beta = {beta}", f"fairfed:metric=accuracy,beta={beta}")
        for beta in ("0.1", "0.5", "1")
    ),
    Row("fedce", "FedCE", "fedce:combine=multi"),
    Row("fedga", "FedGA", "fedga:step=0.05"),
)
METHODS = (*OTHERS, *OURS)
ABLATION = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("salt", "SALT: flat training alone", "fedism-plus:weighting=examples"),
    Row("saga", "SAGA: weights alone", "fedism-plus:trainer=sgd"),
    Row("constant", "SALT + SAGA, constant radius", "fedism"),
    Row("growing", "SALT + SAGA, growing radius", "fedism-plus"),
)
COUNTS: dict[Only, tuple[str, ...]] = {"own": ("1", "2", "4", "6"), "stand-in": ("1", "2", "3")}
"""Sites with poor images, of twenty and of eight."""


def results(number: str, title: str, words: str, data: Data) -> Exhibit:
    more = {"spread": "last-rounds", "ddof": 0, "note": f"{FIFTEEN} {GRID}"}
    return table(number, title, words, METHODS, on(CONDITIONS, data), **more)


def swept(key: str, symbol: str, *values: str) -> Table:
    rows = tuple(Row(f"{key}-{v}", v, f"fedism-plus:{key}={v}") for v in values)
    words = f"FedISM+ (S) over {symbol}"
    return Table(key, words, rows, on(LAST, ICH), draw="curve", axes=(symbol, "%"), stub=symbol, note=FIFTEEN)


PAPER = paper(
    "fedism",
    "FedISM+ (Wu et al., Fair Federated Medical Image Classification Against Quality Shift, 2025)",
    table(
        "1",
        "FedISM+'s parts, alone and together",
        "Flat training (SALT), weights by state (SAGA) and the growing radius",
        ABLATION,
        on(CONDITIONS, ICH),
        spread="last-rounds",
        ddof=0,
        note=FIFTEEN,
    ),
    results("2", "Methods on haemorrhages, some sites with noise", "Noise at some sites", ICH),
    results("3", "Methods on skin lesions, some sites with blur", "Blur at some sites", ISIC),
    table(
        "4",
        "Standard deviation over clients",
        "Every clean client has the AUC on the clean test set, every other one that on the corrupted test set",
        METHODS,
        on((Column("std", "Std", "condition-std", {"metric": "auc_ovo"}, "lower", 2, 100),), ICH, ISIC),
        note="Population standard deviation (ddof 0) over clients, of AUC in %.",
    ),
    table(
        "5",
        "What a client sends, and how long a round takes",
        "Communication and time",
        METHODS,
        on(
            (
                Column("up", "Bytes up", "bytes", better="lower", digits=0),
                Column("extra", "More than FedAvg", "extra-bytes", {"than": "fedavg"}, better="lower", digits=0),
                Column("seconds", "Seconds per round", "seconds", better="lower", digits=2),
            ),
            ICH,
        ),
        references=("fedavg",),
        note="Bytes per client and round; the paper counts 4 for the state, here one state in 64 bits is more.",
    ),
    figure(
        "4",
        "The loss around the final models",
        "Loss on clean and corrupted test images along two filter-normalised random directions",
        (OTHERS[0], *OURS[:2]),
        on((), ICH),
        draw="landscape",
        axes=("step", "loss"),
        stub="Step",
        note="First seed; cross-entropy of 256 images of each test set.",
    ),
    panels(
        "5",
        "The search radius and how it grows",
        swept("rho_max", "rho", "0.02", "0.05", "0.1", "0.2"),
        swept("rho_tau", "tau", "0", "0.25", "0.5", "1", "2"),
    ),
    panels(
        "6",
        "The exponent of the weights and their moving average",
        swept("q", "q", "0.5", "1", "2", "4"),
        swept("beta", "beta", "0.1", "0.3", "0.5", "0.7", "0.9"),
    ),
    figure(
        "7",
        "How many sites have poor images",
        "Methods over the number of sites with poor images",
        tuple(
            Row(f"{method}-{only}-{n}", n, method, group=name, values={"corrupted": n}, only=only)
            for method, name in (("fedavg", "FedAvg"), ("fedism", "FedISM"), ("fedism-plus", "FedISM+ (S)"))
            for only, counts in COUNTS.items()
            for n in counts
        ),
        on(LAST, ICH),
        draw="curve",
        axes=("sites with poor images", "%"),
        stub="Sites",
        note=FIFTEEN,
    ),
)
