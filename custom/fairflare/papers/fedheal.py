# SPDX-License-Identifier: Apache-2.0
"""FedHEAL (Chen et al., CVPR 2024): digits and objects in four looks each, every host method under every rule."""

from __future__ import annotations

from typing import Any

from fairflare.papers.declaration import Column, Data, Exhibit, Row, figure, on, paper, printed, table

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
    *on(printed("domain", "over-domains", "AVG", 1, ("MNIST", "USPS", "SVHN", "SYN")), DIGITS),
    *on(printed("domain", "over-domains", "AVG", 1, ("amazon", "dslr", "caltech", "webcam")), OFFICE),
)
SHORT = PRINTED[0].columns[1:]
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
    ("fedproto", "FedProto", "trainer=fedproto,trainer.share=both"),
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
        Row(
            "-".join(filter(None, (host, rule))),
            name + plus,
            joined(method, own),
            group=name,
            on={"office": joined("fedheal:tau=0.4", own)} if rule == "heal" else {},
        )
        for host, name, own in HOSTS
        for rule, plus, method in over
    )


FEDHEAL = Row("heal", "FedHEAL", "fedheal", on={"office": "fedheal:tau=0.4"})
ALONE = (Row("ditto", "Ditto", "ditto"), Row("fedfv", "FedFV", "fedfv"), FEDHEAL)
ALL = hosted(OVER)
PARTS = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("fphl", "FedAvg + FPHL", "fedheal:parts=fphl", on={"office": "fedheal:parts=fphl,tau=0.4"}),
    Row("fael", "FedAvg + FAEL", "fedheal:parts=fael"),
    Row("both", "FedAvg + FPHL + FAEL", "fedheal", on={"office": "fedheal:tau=0.4"}),
)
BETAS, TAUS = ("0", "0.2", "0.4", "0.6", "0.8", "1"), ("0.1", "0.2", "0.3", "0.4", "0.5")
LOST = "Legend and axes of the paper's drawing are lost from its text."


def over_rounds(number: str, title: str, words: str, rows: tuple[Row, ...], structure: str = LOST) -> Exhibit:
    columns = (Column("round", "round", "domain-rounds", {"which": "mean"}),)
    note = "Mean over the domains' test sets where these are shared, else over the sites' validation splits."
    more: dict[str, Any] = {"draw": "rounds", "axes": ("round", "accuracy"), "structure": structure, "note": note}
    return figure(number, title, words, rows, on(columns, DIGITS), **more)


PAPER = paper(
    "fedheal",
    "FedHEAL (Chen et al., Fair Federated Learning under Domain Skew, CVPR 2024)",
    table(
        "2",
        "Every host method alone and under AFL, q-FFL and FedHEAL",
        "Seven hosts, four rules",
        ALL,
        PRINTED,
        note=f"{METRIC} {UNKNOWN} FedHEAL's tau is 0.3 on digits and 0.4 on Office-Caltech, beta 0.4.",
    ),
    table(
        "3",
        "Methods that cannot be combined with others",
        "Ditto, FedFV and FedHEAL",
        ALONE,
        PRINTED,
        note=f"{METRIC} {UNKNOWN} The paper averages Ditto's personal models for the test; here each is tested itself.",
    ),
    table(
        "4",
        "The step of FAEL",
        "FAEL without FPHL over beta",
        tuple(Row(f"beta-{v}", v, f"fedheal:parts=fael,beta={v}") for v in BETAS),
        on(SHORT, DIGITS),
        stub="beta",
        transposed=True,
        note=METRIC,
    ),
    table(
        "5",
        "FedHEAL's two parts, alone and together",
        "FPHL drops inconsistent updates, FAEL weighs sites by their distance from the model",
        PARTS,
        PRINTED,
        note=f"{METRIC} Of the printed Office-Caltech rows only FedAvg's survives in the paper's text.",
    ),
    figure(
        "2",
        "How consistent the sites' updates are",
        "Share of the parameters of the largest layer by the share of rounds in which they kept one direction",
        tuple(
            Row(f"rounds-{n}", f"{n} rounds", "fedheal:parts=fphl,tau=0", values={"train.rounds": n, "n_sites": "4"})
            for n in ("10", "100")
        ),
        on((), DIGITS),
        draw="consistency",
        axes=("share of rounds with one sign", "share of parameters"),
        stub="Client",
        structure="The paper draws a layer at random; here it is the largest one. Its axes and which digits or objects "
        "it took are not in its text.",
    ),
    over_rounds("5", "Accuracy over the rounds", "FedHEAL and its counterparts", (*ALL[1:4], *ALONE[:2])),
    figure(
        "6",
        "The threshold of FPHL",
        "FPHL and FAEL together, beta 0.4, over tau",
        tuple(Row(f"tau-{v}", v, f"fedheal:tau={v}") for v in TAUS),
        on(SHORT, DIGITS, OFFICE),
        draw="curve",
        axes=("tau", "%"),
        stub="tau",
        note=METRIC,
        structure="Which values of tau the paper draws is lost from its text, which names digits and says of "
        "Office-Caltech only that similar experiments were made.",
    ),
    over_rounds(
        "7",
        "Accuracy over the rounds with and without FedHEAL",
        "Hosts alone and under FedHEAL",
        hosted((OVER[0], OVER[3])),
        f"{LOST} Which hosts and which data set it draws is lost, too.",
    ),
)
