# SPDX-License-Identifier: Apache-2.0
"""FedISM+ (Wu et al., 2025): images of good and poor quality, balanced accuracy and one-vs-one AUC on both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairflare.papers.declaration import (
    Column,
    Data,
    Exhibit,
    Only,
    Row,
    Settings,
    Table,
    figure,
    on,
    panels,
    paper,
    table,
)

PHANTOM = "simulated haemorrhages in real brain anatomy, eight sites of which two have poor images"
MOTION = {"corruption": "motion"}


def ich(key: str, title: str, settings: Settings) -> Data:
    return Data(
        key=key,
        title=f"RSNA ICH, {title}",
        task="rsna-ich:paper",
        needs=("ICH_20",),
        stand_in="ich-phantom:small",
        words=f"{PHANTOM} ({title.lower()})",
        settings=settings,
        other=settings,
    )


def isic(key: str, title: str, settings: Settings) -> Data:
    """On the stand-in the corruption is that of the other data set's block, so that it is left out there."""
    found = ich(key, title, settings)
    return replace(found, title=f"ISIC 2019, {title}", task="isic2019:paper", needs=("ISIC2019_20",))


ICH = ich("ich", "Gaussian noise", {})
ICH_BLUR = ich("ich-blur", "Motion blur", MOTION)
ISIC = isic("isic", "Gaussian noise", {"corruption": "noise"})
ISIC_BLUR = isic("isic-blur", "Motion blur", MOTION)
METRICS = (("acc", "ACC", "balanced_accuracy"), ("auc", "AUC", "auc_ovo"))
WHICH = ("clean", "corrupted", "average")


def score(which: str, key: str, words: str, metric: str, than: str = "") -> Column:
    """A metric on one of the test sets or their average; its difference from ``than`` in the same round and seed."""
    given = {"which": which, "metric": metric, **({"than": than} if than else {})}
    title = f"{which.capitalize()} {'d' if than else ''}{words}"
    return Column(f"{which}-{'d' if than else ''}{key}", title, "condition", given, digits=2, scale=100)


CONDITIONS = tuple(score(which, *metric) for which in WHICH for metric in METRICS)
WITH_DIFFERENCES = tuple(
    score(which, *metric, than) for which in WHICH for metric in METRICS for than in ("", "fedavg")
)
AUCS = tuple(score(which, *METRICS[1]) for which in ("corrupted", "average"))
START = (
    "The paper's ResNet-18 starts from ImageNet weights and its sites train on all images; on the user's copy weights "
    "are random ones without --set pretrained_weights=FILE, and sites set 30 % aside for validation and test."
)
FIFTEEN = (
    "ACC is balanced accuracy and AUC the macro average of one-vs-one AUC (%), as in the authors' code; the paper does "
    f"not define them. Over three seeds and the last five rounds. {START}"
)
GRID = "q of q-FedAvg and beta of FairFed are the best of the paper's grids by AUC on corrupted images."
PLUS = "The paper does not say whether FedISM+ stands for (S) or (L) here: (S)."
DRAWN = "The paper's legend and axes are lost from its text; the sweep is as far as the text names it."
FAIR = "Fair optimization"
FEDAVG = Row("fedavg", "FedAvg", "fedavg", group="Vanilla")
FEDISM = Row("fedism", "FedISM", "fedism", group="Fair generalization")
PLUS_S = Row("fedism-plus-s", "FedISM+ (S)", "fedism-plus:state=S", group="Ours")
PLUS_L = Row("fedism-plus-l", "FedISM+ (L)", "fedism-plus:state=L", group="Ours")
FEDGA = Row("fedga", "FedGA", "fedga:step=0.05", group=FAIR)
QFEDAVG = tuple(
    Row(f"q-{q}", f"q-FedAvg, q = {q}", f"qffl:q={q}", group=FAIR, one_of="q-FedAvg") for q in ("0.5", "1", "2", "5")
)
FAIRFED = tuple(
    Row(f"fairfed-{b}", f"FairFed, beta = {b}", f"fairfed:metric=accuracy,beta={b}", group=FAIR, one_of="FairFed")
    for b in ("0.1", "0.5", "1")
)
AFL = Row("afl", "Agnostic-FL", "afl:argmax=true,average=none", group=FAIR)
FEDCE = Row("fedce", "FedCE", "fedce:combine=multi", group=FAIR)
OTHERS = (FEDAVG, AFL, *QFEDAVG, *FAIRFED, FEDCE, FEDGA, FEDISM)
METHODS = (*OTHERS, PLUS_S, PLUS_L)
BEST_FO = tuple(replace(row, one_of="Best FO") for row in (AFL, *QFEDAVG, *FAIRFED, FEDCE, FEDGA))
"""The five fair-optimization baselines, of which the figures draw the best on corrupted images."""
ABLATION = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("salt", "FedAvg + SALT", "fedism-plus:weighting=examples"),
    Row("saga-s", "FedAvg + SAGA (S)", "fedism-plus:trainer=sgd,state=S"),
    Row("saga-l", "FedAvg + SAGA (L)", "fedism-plus:trainer=sgd,state=L"),
    Row("both-s", "FedISM+ (S)", "fedism-plus:state=S"),
    Row("both-l", "FedISM+ (L)", "fedism-plus:state=L"),
)
QS, BETAS = ("0.1", "0.5", "1", "2", "5", "10"), ("0.3", "0.5", "0.7", "0.9", "1")
RADII, TAUS = ("0.05", "0.1"), ("0.1", "0.5", "1")
COUNTS: dict[Only, tuple[tuple[str, str], ...]] = {
    "own": (("1", "5 %"), ("2", "10 %"), ("4", "20 %"), ("6", "30 %")),
    "stand-in": (("1", "12.5 %"), ("2", "25 %"), ("3", "37.5 %")),
}
"""Sites with poor images and their share, of twenty and of eight."""


def results(number: str, title: str, words: str, *data: Data) -> Exhibit:
    note = f"{FIFTEEN} {GRID}"
    more: dict[str, Any] = {"spread": "last-rounds", "ddof": 0, "note": note, "choose": "corrupted-auc"}
    return table(number, title, words, METHODS, on(CONDITIONS, *data), **more)


def over_rounds(key: str, words: str, rows: tuple[Row, ...]) -> Table:
    blocks = on((Column("round", "round", "condition-rounds", {"which": "corrupted", "metric": "auc_ovo"}),), ICH)
    more: dict[str, Any] = {
        "draw": "rounds",
        "axes": ("round", "AUC on corrupted images"),
        "note": f"{PLUS} {START}",
        "structure": DRAWN,
    }
    return Table(key, words, rows, blocks, **more)


def swept(key: str, symbol: str, lines: tuple[tuple[str, str, tuple[str, ...]], ...], flat: tuple[Row, ...]) -> Table:
    """Curves over a parameter, and methods that do not have it as level lines."""
    values = lines[0][2]
    rows = tuple(
        Row(f"{method}-{v}", v, f"{method}:{key}={v}", group=name) for method, name, found in lines for v in found
    )
    level = tuple(
        replace(
            row,
            key=f"{row.key}-at-{v}",
            title=v,
            group=row.one_of or row.title,
            one_of=row.one_of and f"{row.one_of} {v}",
        )
        for v in values
        for row in flat
    )
    blocks = on((score("clean", *METRICS[1]), score("corrupted", *METRICS[1])), ICH)
    more: dict[str, Any] = {
        "draw": "curve",
        "axes": (symbol, "%"),
        "stub": symbol,
        "note": f"{FIFTEEN} {PLUS}",
        "structure": DRAWN,
        "choose": "corrupted-auc",
        "spread": "last-rounds",
        "ddof": 0,
    }
    return Table(key, f"Sweep of {symbol}", (*rows, *level), blocks, **more)


def shares_of_poor(row: Row) -> tuple[Row, ...]:
    return tuple(
        replace(row, key=f"{row.key}-{only}-{n}", title=share, group=row.one_of or row.title, one_of="",
                values={"corrupted": n}, only=only)
        for only, counts in COUNTS.items()
        for n, share in counts
    )  # fmt: skip


def tuned(rows: tuple[Row, ...], heading: str) -> tuple[Row, ...]:
    """Rows of which each share of poor sites shows the best."""
    found = [
        replace(one, one_of=f"{heading} {one.title}", group=heading) for row in rows for one in shares_of_poor(row)
    ]
    return tuple(sorted(found, key=lambda row: row.one_of))


PAPER = paper(
    "fedism",
    "FedISM+ (Wu et al., Fair Federated Medical Image Classification Against Quality Shift, 2025)",
    table(
        "1",
        "FedISM+'s parts, alone and together",
        "Ablation on RSNA ICH with Gaussian noise at 20 % of the clients; d: difference from FedAvg",
        ABLATION,
        on(WITH_DIFFERENCES, ICH),
        spread="last-rounds",
        ddof=0,
        references=("fedavg",),
        note=FIFTEEN,
    ),
    results("2", "Methods on RSNA ICH", "Methods, Gaussian noise and motion blur", ICH, ICH_BLUR),
    results("3", "Methods on ISIC 2019", "Methods, Gaussian noise and motion blur", ISIC, ISIC_BLUR),
    table(
        "4",
        "Standard deviation of AUC over clients",
        "Every clean client has the AUC on the clean test set, every other one that on the corrupted test set",
        (*OTHERS, *(replace(row, one_of="FedISM+") for row in (PLUS_S, PLUS_L))),
        on(
            (Column("std", "Std", "condition-std", {"metric": "auc_ovo"}, "lower", 2, 100),),
            *(ICH, ICH_BLUR, ISIC, ISIC_BLUR),
        ),
        spread="last-rounds",
        ddof=0,
        mean="Avg",
        note=f"Population standard deviation (ddof 0) over clients, of AUC in %. {GRID} FedISM+ is the better of (S) "
        f"and (L) in each column, as printed. Avg is the mean of the columns. {START}",
    ),
    table(
        "5",
        "Communication",
        "Bytes per client and round, both ways",
        (replace(FEDAVG, group=""), replace(PLUS_S, title="FedISM+", group="")),
        on(
            (
                Column("bytes", "Bytes", "bytes", better="lower", digits=0),
                Column("ratio", "Over FedAvg's", "bytes", {"than": "fedavg"}, better="lower", digits=9),
            ),
            ICH,
        ),
        references=("fedavg",),
        transposed=True,
        stub="",
        note="The paper prints 2 x 44.59 MB, which are MiB of a ResNet-18 of 1,000 classes, and 4 bytes more for the "
        f"state; here the state has 8, an answer has further numbers, and the network has the task's classes. {PLUS}",
    ),
    panels(
        "4",
        "Learning curves: fixed radii against growing ones, and tau",
        over_rounds(
            "rho",
            "FedISM at fixed radii and FedISM+",
            (
                *(Row(f"rho-{v}", f"FedISM, rho = {v}", f"fedism:rho_max={v}") for v in RADII),
                replace(PLUS_S, title="FedISM+"),
            ),
        ),
        over_rounds(
            "tau", "FedISM+ over tau", tuple(Row(f"tau-{v}", f"tau = {v}", f"fedism-plus:rho_tau={v}") for v in TAUS)
        ),
    ),
    panels(
        "5",
        "The exponent of the weights and their moving average",
        swept("q", "q", (("fedism", "FedISM", QS), ("fedism-plus", "FedISM+", QS)), (FEDAVG, *BEST_FO)),
        swept("beta", "beta", (("fedism-plus", "FedISM+", BETAS),), (FEDAVG, *BEST_FO, FEDISM)),
    ),
    figure(
        "6",
        "How many clients have poor images",
        "Methods over the share of clients with poor images",
        (
            *shares_of_poor(FEDAVG),
            *tuned(BEST_FO, "Best FO"),
            *shares_of_poor(FEDISM),
            *tuned(tuple(Row(f"plus-{v}", f"tau = {v}", f"fedism-plus:rho_tau={v}") for v in TAUS), "FedISM+"),
        ),
        on(AUCS, ICH, ISIC),
        draw="curve",
        axes=("clients with poor images", "%"),
        stub="Share",
        spread="last-rounds",
        ddof=0,
        choose="corrupted-auc",
        note=f"{FIFTEEN} Best FO and tau are chosen by AUC on corrupted images. {PLUS}",
        structure=DRAWN,
    ),
    figure(
        "7",
        "The loss around the final models",
        "Loss on corrupted test images along two filter-normalised random directions",
        (FEDAVG, FEDGA, FEDISM, replace(PLUS_S, title="FedISM+")),
        on((), ICH),
        draw="landscape",
        axes=("step", "loss"),
        stub="Step",
        note=f"First seed; cross-entropy of 256 images. {PLUS} {START}",
    ),
)
