# SPDX-License-Identifier: Apache-2.0
"""FedHEAL (Chen et al., CVPR 2024): digits and objects in four looks each, every host method under every rule."""

from __future__ import annotations

from fairflare.papers.declaration import Block, Column, Data, Paper, Row, Table, figure, table

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
PRINTED = (
    Column("domain", "domain", "domains", digits=2, scale=100),
    Column("mean", "Mean", "over-domains", {"which": "mean"}, digits=2, scale=100),
    Column("std", "Std", "over-domains", {"which": "std", "ddof": 1}, better="lower", digits=2, scale=100),
)
SHORT = PRINTED[1:]
OVER_ROUNDS = (Column("round", "round", "rounds"),)
METRIC = (
    "Top-1 accuracy (%) on each domain's test set, mean of the last five rounds where it is shared and of the final "
    "model where it lies at the sites; Std is the sample standard deviation over domains (ddof 1)."
)
UNKNOWN = "The paper prints no settings of the methods that it compares with; these are their defaults here."
TAUS, BETAS = ("0.1", "0.2", "0.3", "0.4", "0.5"), ("0", "0.2", "0.4", "0.6", "0.8", "1")
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


def swept(name: str, words: str, rows: tuple[Row, ...]) -> Table:
    """A panel over values of a hyper-parameter."""
    return Table(name, words, rows, (Block(DIGITS, SHORT),), draw="curve", axes=(name, "%"), stub=name, note=METRIC)


PAPER = Paper(
    key="fedheal",
    words="FedHEAL (Chen et al., Fair Federated Learning under Domain Skew, CVPR 2024)",
    exhibits=(
        table(
            "fedheal",
            "2",
            "Every host method under every rule, on digits",
            Table("2", "Hosts and rules on digits", ALL, (Block(DIGITS, PRINTED),), note=f"{METRIC} {UNKNOWN}"),
        ),
        table(
            "fedheal",
            "3",
            "Every host method under every rule, on Office-Caltech",
            Table("3", "Hosts and rules on objects", ALL, (Block(OFFICE, PRINTED),), note=f"{METRIC} {UNKNOWN}"),
        ),
        table(
            "fedheal",
            "4",
            "Host methods with and without FedHEAL",
            Table(
                "4",
                "What FedHEAL adds to each host",
                hosted((OVER[0], OVER[3])),
                (Block(DIGITS, SHORT), Block(OFFICE, SHORT)),
                note=f"{METRIC} {UNKNOWN}",
            ),
        ),
        table(
            "fedheal",
            "5",
            "FedHEAL's two parts, alone and together",
            Table(
                "5",
                "FPHL drops inconsistent updates, FAEL weighs sites by their distance from the model",
                PARTS,
                (Block(DIGITS, PRINTED), Block(OFFICE, PRINTED)),
                structure="",
                note=METRIC,
            ),
        ),
        figure(
            "fedheal",
            "2",
            "How consistent the sites' updates are",
            Table(
                "2",
                "Share of an update's positions that are consistent enough to be kept, last round",
                tuple(Row(f"tau-{v}", f"tau {v}", f"fedheal:parts=fphl,tau={v}") for v in ("0.3", "0.4", "0.5")),
                (Block(DIGITS, (Column("kept", "site", "note", {"name": "kept_share"}, better=""),)),),
                draw="bars",
                axes=("site", "kept share"),
            ),
        ),
        figure(
            "fedheal",
            "5",
            "Accuracy over the rounds",
            Table(
                "5",
                "Mean over sites of the received model's validation accuracy",
                RULES,
                (Block(DIGITS, OVER_ROUNDS),),
                draw="rounds",
                axes=("round", "accuracy"),
            ),
        ),
        figure(
            "fedheal",
            "6",
            "The two hyper-parameters of FedHEAL",
            swept(
                "tau", "The threshold of FPHL", tuple(Row(f"tau-{v}", v, f"fedheal:parts=fphl,tau={v}") for v in TAUS)
            ),
            swept(
                "beta", "The step of FAEL", tuple(Row(f"beta-{v}", v, f"fedheal:parts=fael,beta={v}") for v in BETAS)
            ),
        ),
        figure(
            "fedheal",
            "7",
            "The worst site over the rounds",
            Table(
                "7",
                "The worst site's validation accuracy",
                RULES,
                (Block(DIGITS, (Column("round", "round", "rounds", {"which": "worst"}),)),),
                draw="rounds",
                axes=("round", "accuracy"),
            ),
        ),
    ),
)
