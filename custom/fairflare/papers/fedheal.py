# SPDX-License-Identifier: Apache-2.0
"""FedHEAL (Chen et al., CVPR 2024): digits and objects in four looks each, every host method under every rule."""

from __future__ import annotations

from fairflare.papers.declaration import Column, Data, Exhibit, Row, Table, figure, on, panels, paper, printed, table

DIGITS = Data(
    key="digits",
    title="Digits (MNIST, USPS, SVHN, SYN)",
    task="digits5:paper",
    needs=("MNIST", "usps.bz2", "train_32x32.mat", "syn"),
    stand_in="digits:small",
    words="eight sites with handwriting, coarse handwriting, handwriting over photographs and printed digits",
)
OFFICE = Data(
    key="office",
    title="Office-Caltech",
    task="office-caltech:paper",
    needs=("office_caltech_10",),
    stand_in="digits:small",
    words="four looks of digits, since no embedded task has photographs of objects",
)
PRINTED = printed("domain", "over-domains", "Mean", 1)
SHORT = PRINTED[1:]
METRIC = (
    "Top-1 accuracy (%) on each domain's test set, mean of the last five rounds where it is shared and of the final "
    "model where it lies at the sites; Std is the sample standard deviation over domains (ddof 1)."
)
UNKNOWN = "The paper prints no settings of the methods that it compares with; these are their defaults here."
HOSTS = (
    ("fedavg", "FedAvg", ""),
    ("fedprox", "FedProx", "trainer=fedprox"),
    ("scaffold", "SCAFFOLD", "trainer=scaffold"),
    ("moon", "MOON", "trainer=moon"),
    ("feddyn", "FedDyn", "trainer=feddyn"),
    ("fedproc", "FedProc", "trainer=fedproc"),
    ("fedproto", "FedProto", "trainer=fedproto,share=both"),
)
"""Key, name and the setting that puts the host's local training under another rule."""
OVER = (
    ("", "", "fedavg"),
    ("afl", " + AFL", "afl:average=none"),
    ("q", " + q-FFL", "qfedavg"),
    ("heal", " + FedHEAL", "fedheal"),
)
"""Key, name and method of the rule in the place of plain averaging."""


def joined(method: str, settings: str) -> str:
    """A METHOD label with further settings."""
    return f"{method}{',' if ':' in method else ':'}{settings}" if settings else method


def hosted(over: tuple[tuple[str, str, str], ...]) -> tuple[Row, ...]:
    """Every host under each of these rules."""
    return tuple(
        Row("-".join(filter(None, (host, rule))), name + plus, joined(method, own), group=name)
        for host, name, own in HOSTS
        for rule, plus, method in over
    )


ALONE = (Row("fedfv", "FedFV", "fedfv", group="Others"), Row("ditto", "Ditto", "ditto", group="Others"))
ALL = (*hosted(OVER), *ALONE)
PARTS = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("fphl", "FedAvg + FPHL", "fedheal:parts=fphl"),
    Row("fael", "FedAvg + FAEL", "fedheal:parts=fael"),
    Row("both", "FedAvg + FPHL + FAEL", "fedheal", on={"office": "fedheal:tau=0.4"}),
)
RULES = tuple(Row(key or "fedavg", f"FedAvg{name}", method) for key, name, method in OVER)


def hosts(number: str, title: str, words: str, data: Data) -> Exhibit:
    return table(number, title, words, ALL, on(PRINTED, data), note=f"{METRIC} {UNKNOWN}")


def over_rounds(number: str, title: str, words: str, **given: str) -> Exhibit:
    column = Column("round", "round", "rounds", given)
    return figure(number, title, words, RULES, on((column,), DIGITS), draw="rounds", axes=("round", "accuracy"))


def swept(name: str, words: str, parts: str, values: tuple[str, ...]) -> Table:
    rows = tuple(Row(f"{name}-{v}", v, f"fedheal:parts={parts},{name}={v}") for v in values)
    return Table(name, words, rows, on(SHORT, DIGITS), draw="curve", axes=(name, "%"), stub=name, note=METRIC)


PAPER = paper(
    "fedheal",
    "FedHEAL (Chen et al., Fair Federated Learning under Domain Skew, CVPR 2024)",
    hosts("2", "Every host method under every rule, on digits", "Hosts and rules on digits", DIGITS),
    hosts("3", "Every host method under every rule, on Office-Caltech", "Hosts and rules on objects", OFFICE),
    table(
        "4",
        "Host methods with and without FedHEAL",
        "What FedHEAL adds to each host",
        hosted((OVER[0], OVER[3])),
        on(SHORT, DIGITS, OFFICE),
        note=f"{METRIC} {UNKNOWN}",
    ),
    table(
        "5",
        "FedHEAL's two parts, alone and together",
        "FPHL drops inconsistent updates, FAEL weighs sites by their distance from the model",
        PARTS,
        on(PRINTED, DIGITS, OFFICE),
        structure="",
        note=METRIC,
    ),
    figure(
        "2",
        "How consistent the sites' updates are",
        "Share of an update's positions that are consistent enough to be kept, last round",
        tuple(Row(f"tau-{v}", f"tau {v}", f"fedheal:parts=fphl,tau={v}") for v in ("0.3", "0.4", "0.5")),
        on((Column("kept", "site", "note", {"name": "kept_share"}, better=""),), DIGITS),
        draw="bars",
        axes=("site", "kept share"),
    ),
    over_rounds("5", "Accuracy over the rounds", "Mean over sites of the received model's validation accuracy"),
    panels(
        "6",
        "The two hyper-parameters of FedHEAL",
        swept("tau", "The threshold of FPHL", "fphl", ("0.1", "0.2", "0.3", "0.4", "0.5")),
        swept("beta", "The step of FAEL", "fael", ("0", "0.2", "0.4", "0.6", "0.8", "1")),
    ),
    over_rounds("7", "The worst site over the rounds", "The worst site's validation accuracy", which="worst"),
)
