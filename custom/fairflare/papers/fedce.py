# SPDX-License-Identifier: Apache-2.0
"""FedCE (Jiang et al., CVPR 2023): segmentation, Dice per client, and what each client contributes."""

from __future__ import annotations

from fairflare.papers.declaration import Block, Column, Data, Paper, Row, Table, figure, table

RETINA = Data(
    key="retina",
    title="Retinal fundus images",
    task="fundus:paper",
    needs=("Fundus",),
    stand_in="fundus-phantom:small",
    words="drawn optic discs and cups as six simulated cameras see them",
    own=False,
)
PROSTATE = Data(
    key="prostate",
    title="Prostate MRI",
    task="prostate:paper-fedce",
    needs=("dataset_2D", "datalist_2D"),
    stand_in="brain-seg:small",
    words="grey matter, white matter and ventricles of one template as six simulated scanners see it",
    settings={"layout": "fed-ce"},
)
BOTH = (PROSTATE, RETINA)
PRINTED = (
    Column("site", "site", "sites", digits=2, scale=100),
    Column("mean", "Avg", "over-sites", {"which": "mean"}, digits=2, scale=100),
    Column("std", "Std", "over-sites", {"which": "std", "ddof": 1}, better="lower", digits=2, scale=100),
)
METRIC = "Dice (%) on each client's own test split; Std is the sample standard deviation over clients (ddof 1)."
UNKNOWN = (
    "The paper prints no settings of the methods that it compares with; these are their defaults here, for q-FedAvg "
    "L = 0.005, which FedUFO's code has under Adam: 1 / lr is that of plain SGD, and with it the model hardly moves; "
    "CFFL removes sites, as published."
)
SOLO = Row("solo", "Standalone", "solo")
FEDERATED = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("qfedavg", "q-FedAvg", "qfedavg:lipschitz=0.005"),
    Row("cffl", "CFFL", "cffl:remove=true"),
    Row("cgsv", "CGSV", "cgsv"),
    Row("fedci", "FedCI", "fedci"),
    Row("fedce-sum", "FedCE (sum)", "fedce:combine=sum"),
    Row("fedce-multi", "FedCE (multi)", "fedce:combine=multi"),
)
WEIGHED = (FEDERATED[0], *FEDERATED[-2:])
"""Methods whose weights are compared with leave-one-out shares."""
ABLATION = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("cosine", "Gradient space alone", "fedce:terms=cosine"),
    Row("error", "Data space alone", "fedce:terms=error"),
    *FEDERATED[-2:],
)
CLIENTS = ("1", "2", "3", "4", "5", "6")


def agreement(measure: str, *names: tuple[str, str]) -> tuple[Column, ...]:
    """Pearson x 100, Euclidean distance and cosine, as many as are asked for."""
    lower = {"euclid": "lower"}
    return tuple(
        Column(key, title, measure, {"which": key}, better="lower" if key in lower else "higher", digits=2)
        for key, title in names
    )


def over_rounds(number: str, words: str, which: str) -> Table:
    """A panel with a curve per method."""
    return Table(
        number,
        words,
        (FEDERATED[0], *FEDERATED[-2:]),
        (Block(PROSTATE, (Column("round", "round", "rounds", {"which": which}),)),),
        draw="rounds",
        axes=("round", "Dice"),
    )


PEARSON, EUCLID, COSINE = ("pearson_x100", "Pearson x 100"), ("euclid", "Euclid"), ("cosine", "Cosine")
PAPER = Paper(
    key="fedce",
    words="FedCE (Jiang et al., Fair Federated Medical Image Segmentation via Client Contribution, CVPR 2023)",
    exhibits=(
        table(
            "fedce",
            "1",
            "Dice of every client",
            Table(
                "1",
                "Methods by client",
                (SOLO, *FEDERATED),
                tuple(Block(data, PRINTED) for data in BOTH),
                note=f"{METRIC} {UNKNOWN}",
            ),
        ),
        table(
            "fedce",
            "2",
            "Performance fairness",
            Table(
                "2",
                "Agreement of the clients' Dice with that of their own models",
                FEDERATED,
                tuple(Block(data, agreement("like-alone", PEARSON, EUCLID)) for data in BOTH),
                references=("solo",),
                note=UNKNOWN,
            ),
        ),
        table(
            "fedce",
            "3",
            "Collaboration fairness",
            Table(
                "3",
                "Agreement of the last weights with leave-one-out shares of FedAvg",
                WEIGHED,
                (Block(PROSTATE, agreement("like-left-out", PEARSON, EUCLID, COSINE)),),
                left_out="fedavg",
                note="A client's share is how much the mean Dice falls without it, over the sum of these drops.",
            ),
        ),
        table(
            "fedce",
            "4",
            "Gradient space and data space",
            Table(
                "4",
                "FedCE's two terms, alone and together",
                ABLATION,
                tuple(Block(data, PRINTED[1:]) for data in BOTH),
                note=METRIC,
            ),
        ),
        table(
            "fedce",
            "5",
            "Leaving each client out",
            Table(
                "5",
                "Drop of the mean Dice without a client, its share of the drops, and FedCE's last weights",
                (FEDERATED[-2],),
                (
                    Block(
                        PROSTATE,
                        (
                            Column("drop", "drop", "drops", {"prefix": "drop, "}, better="", digits=4),
                            Column("share", "share", "shares", {"prefix": "share, "}, better=""),
                            Column("weight", "weight", "weights", {"prefix": "weight, "}, better=""),
                        ),
                    ),
                ),
                left_out="fedavg",
            ),
        ),
        table(
            "fedce",
            "6",
            "Dice of every client, with its spread over runs",
            Table(
                "6",
                "Clients by method",
                (SOLO, *FEDERATED),
                tuple(Block(data, PRINTED[:1]) for data in BOTH),
                note=f"{METRIC} The paper's spread is over three runs.",
            ),
        ),
        figure(
            "fedce",
            "2",
            "How bright each client's images are",
            Table(
                "2",
                "Share of the training images' pixels at each intensity",
                (),
                tuple(Block(data, ()) for data in BOTH),
                seeds=(0, 1, 2),
                draw="density",
                axes=("intensity as the network takes it", "share of pixels"),
                stub="Client",
            ),
        ),
        figure(
            "fedce",
            "3",
            "Leave-one-out shares and estimated contributions",
            *(
                Table(
                    f"3-{key}",
                    words,
                    (FEDERATED[-2],),
                    (Block(PROSTATE, (Column(key, key, measure, better=""),)),),
                    left_out="fedavg",
                    draw="bars",
                    axes=("client", "share"),
                )
                for key, words, measure in (
                    ("shares", "Leave-one-out shares", "shares"),
                    ("weights", "FedCE's weights", "weights"),
                )
            ),
        ),
        figure(
            "fedce",
            "4",
            "Smaller and larger differences between clients",
            Table(
                "4",
                "FedAvg and FedCE over the size of the shift between simulated scanners",
                tuple(
                    Row(f"{row.key}-{v}", v, row.label, group=row.title, values={"shift": v}, only="stand-in")
                    for row in (FEDERATED[0], FEDERATED[-2])
                    for v in ("0", "0.5", "1")
                ),
                (Block(PROSTATE, PRINTED[1:]),),
                draw="curve",
                axes=("shift", "%"),
                stub="Shift",
                note=f"{METRIC} Made on the embedded task alone: the shift of real data cannot be set.",
            ),
        ),
        figure(
            "fedce",
            "5",
            "The clients' weights over the rounds",
            Table(
                "5",
                "FedCE's weights",
                tuple(Row(f"c{k}", f"client {k}", "fedce:combine=sum", given={"index": int(k)}) for k in CLIENTS),
                (Block(PROSTATE, (Column("round", "round", "site-weights", better=""),)),),
                draw="rounds",
                axes=("round", "weight"),
                stub="Client",
            ),
        ),
        figure("fedce", "6", "Mean Dice over the rounds", over_rounds("6", "Mean over clients", "mean")),
        figure(
            "fedce",
            "7",
            "A free rider's score",
            Table(
                "7",
                "Free-rider score of every client, last round; one client's training images are one image",
                tuple(
                    Row(f"rider-{k}", f"client {k} rides", "fedce", values={"free_rider": k}, only="stand-in")
                    for k in ("1", "4", "6")
                ),
                (Block(PROSTATE, (Column("score", "client", "note", {"name": "free_rider_score"}, better=""),)),),
                draw="bars",
                axes=("client", "score"),
                note="Made on the embedded task alone: a free rider has to be put into the data.",
            ),
        ),
        figure("fedce", "8", "The worst client's Dice over the rounds", over_rounds("8", "Worst client", "worst")),
        figure(
            "fedce",
            "9",
            "Gradient space and data space by client",
            Table(
                "9",
                "Dice of every client with either term of FedCE",
                ABLATION,
                (Block(PROSTATE, PRINTED[:1]),),
                draw="bars",
                axes=("client", "Dice"),
                note=METRIC,
            ),
        ),
    ),
)
