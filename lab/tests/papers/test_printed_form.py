# SPDX-License-Identifier: Apache-2.0
"""Every exhibit has the form that its paper printed: ``printed.json``, transcribed from the papers' texts alone.

A fact that is null is lost from the text; the declaration then says so in its caption. What is shown is read from the
table that ``tabulate`` makes, with measures replaced by stubs that only name their columns.
"""

import json
from itertools import groupby
from pathlib import Path

from cases import each
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.studies.labels import split_method
from fairflare_lab.datasets import digits5, office_caltech
from fairflare_lab.papers import measures, tabulate
from fairflare_lab.papers.declaration import exhibits
from fairflare_lab.studies import paper_panels

PRINTED = json.loads(Path(__file__).with_name("printed.json").read_text(encoding="utf-8"))
OURS = {name: exhibit for name, exhibit in exhibits().items() if not exhibit.own and not name.startswith("flamby")}

AS_PRINTED = {
    **{"RSNA ICH, Motion blur": "RSNA ICH, motion blur", "ISIC 2019, Motion blur": "ISIC 2019, motion blur"},
    **{"RIF (retinal fundus images)": "RIF", "Retinal fundus images": "Retinal fundus", "Prostate (SEER)": "Prostate"},
    "Digits (MNIST, USPS, SVHN, SYN)": "Digits",
    **{f"FedAvg + {part}": part for part in ("SALT", "SAGA (S)", "SAGA (L)", "FPHL", "FAEL")},
    "Bytes": "Overhead",
    "Over FedAvg's": "Overhead",
    **{"Fed-LWR-v1 (cosine)": "Fed-LWR-v1", "Fed-LWR-v2 (last encoder layer)": "Fed-LWR-v2"},
    **{"G(cos)": "cos", "G(err)": "err"},
    **{f"client {k}": str(k) for k in range(1, 7)},
    **{f"client {k} rides": str(k) for k in range(1, 7)},
    **{"all six train": "original distribution", "client 5 has left": "distribution excluding client 5"},
    **{"Pearson x 100": "Pearson Correlation", "p": "Pearson Correlation"},
    **{"Euclid": "Euclidean Distance", "Cosine": "Cosine Similarity"},
    **{"Dice, Disc": "Dice", "Dice, Cup": "Dice", "dDice, Disc": "dDice", "dDice, Cup": "dDice"},
    **{"Performance contribution, %": "Performance Contribution", "Training samples": "Training Samples"},
    "Sample contribution, %": "Sample Contribution",
    **{"WorstTPR, %": "WorstTPR (%)", "Overall accuracy, %": "Overall Acc (%)"},
    **{"Vanilla": "Vanilla FL", "Fair optimization": "Fair Optimization (0th-Order State)"},
    **{"Fair generalization": "Fair Generalization (1st-Order State)", "Ours": "Ours (Multiple States)"},
    **{"alpha 1": "out of distribution", "train": "training"},
    **{f"alpha {k}": str(k) for k in (10, 5, 2)},
}
"""What stands here -> what the paper prints. Several of one printed name are parts of one printed cell."""
IN_PAPER = {
    "fedism": {"Std": "STD of AUC"},
    "fedlwr": {"Avg": "Avg.", "Std": "Std.", **{f"site-{k}": f"Site{k}" for k in range(1, 7)}},
    "fedce": {"Std": "Std.", **{f"site-{k}": str(k) for k in range(1, 7)}},
    "fedheal": {
        **{"Std": "STD", "FedAvg": "FedAvg", "FedAvg + FPHL + FAEL": "FPHL and FAEL", "0": "0.0", "1": "1.0"},
        **{name: name.capitalize().replace("Dslr", "DSLR") for name in office_caltech.DOMAINS},
    },
}
IN_EXHIBIT = {
    "fedism-figure-4": {**{f"FedISM, rho = {v}": "FedISM" for v in ("0.05", "0.1")}}
    | {f"tau = {v}": "FedISM+" for v in ("0.1", "0.5", "1")},
    "fedlwr-figure-2": {"FedCE (Sum.)": "FedCE"},
    "fedheal-table-5": {"FedAvg": "none"},
    "fedheal-figure-5": {f"FedAvg + {rule}": rule for rule in ("AFL", "q-FFL", "FedHEAL")},
    "fedheal-table-2": {
        title: title.replace("SCAFFOLD", "Scaffold").replace(" + ", " +")
        for title in (row.title for row in OURS["fedheal-table-2"].tables[0].rows)
    },
    "fedufo-figure-4": {"Disparity over clients": "fairness"},
}
OF_GROUPS = {
    ("over-groups", "sites"): "Disparity over clients",
    ("over-groups", "disparity"): "Disparity over attributes",
    ("over-sites", "worst"): "Acc for the worst client (%)",
    ("over-groups", "worst"): "Acc for the worst attribute (%)",
    ("over-groups", "overall"): "Overall Acc (%)",
    **{(m, "harmonic-printed"): "Harmonic average of disparity" for m in ("over-groups", "elsewhere")},
    **{(m, "harmonic-worst"): "Harmonic average of worst Acc (%)" for m in ("over-groups", "elsewhere")},
}
"""(measure, which) -> what FedUFO prints of it."""
DRAWN = {"landscape": "Corrupted loss", "layers": "CKA", "density": "pixel intensity"}
OF_ROUNDS = {
    ("fedlwr", "mean"): "Avg.",
    ("fedlwr", "std"): "Std.",
    ("fedheal", "mean"): "AVG",
    ("fedce", "mean"): "Dice",
    ("fedce", "novelty"): "gradient cosine",
    ("fedce", "free_rider_score"): "gradient cosine x error difference",
}
SETTINGS = {
    **{"q": ("q",), "beta": ("beta", "rule.beta"), "radius": ("radius",), "alpha": ("alpha",)},
    **{"clients": ("n_sites",), "local epochs": ("train.epochs",), "rounds": ("train.rounds",)},
}
EXCEPTIONS = {
    ("fedheal-table-3", "beside"): (True, "the parts stand beside each other, with the same cells"),
    ("fedheal-table-5", "beside"): (True, "the parts stand beside each other, with the same cells"),
    ("fedlwr-figure-2", "part"): ("validation", "test images are read once, at the end"),
    ("fedufo-table-11", "columns"): (
        {**PRINTED["fedufo-table-11"]["columns"], "Prostate": [f"Attr {k}" for k in range(1, 12)]},
        "the authors' code keeps the ten most frequent cancers and others, the paper nine and others",
    ),
}
"""(exhibit, fact) -> what is shown in place of what is printed, and why."""


def one(values):
    """A fact of all panels: one value where it is the same, else a list of the panels'."""
    return values[0] if all(value == values[0] for value in values) else values


class Shown:
    """The facts of an exhibit as it stands here, a method for each name in ``printed.json``."""

    def __init__(self, name, exhibit, monkeypatch, printed):
        self.name, self.exhibit, self.printed = name, exhibit, printed
        self.tables = exhibit.tables
        self.paper = name.partition("-")[0]
        self.only_stand_in = all(row.only == "stand-in" for table in self.tables for row in table.rows)
        monkeypatch.setattr(tabulate, "evaluated", self.stub)
        self.made = [self.tabulated(table, monkeypatch) for table in self.tables]

    def stub(self, measure, run, beside, given):
        """One value under each name that the measure gives columns to; ``run`` is the data set."""
        sites = [f"site-{k}" for k in range(1, (5 if run.title.startswith("RIF") else 7))]
        left = next((k for table in self.tables for k in table.left_sites), 1)
        names = {
            "sites": sites,
            "domains": {"office": office_caltech.DOMAINS}.get(run.key, digits5.DOMAINS),
            "without": sites if given.get("change") else [*sites, "No"],
            **{"shares": sites, "examples": sites, "relative-weights": sites[: left - 1] + sites[left:]},
            **{"rounds": ["1", "2"], "condition-rounds": ["1", "2"], "domain-rounds": ["1", "2"]},
            "note-rounds": ["1", "2"] if given.get("site") else [f"round 10, {site}" for site in sites],
        }
        return {name: [0.5] for name in names.get(measure, [""])}

    def tabulated(self, table, monkeypatch):
        used = [
            tabulate.Used(
                data,
                data.task,
                self.only_stand_in,
                {row.key: {0: data} for row in table.rows if row.is_for(self.only_stand_in)},
            )
            for data in table.data
        ]
        if table.draw == "counts":
            return self.counted(table, monkeypatch)
        return tabulate.tabulated(table, "x", used)[0]

    def counted(self, table, monkeypatch):
        load = tasks.load

        class Empty:
            def __init__(self, task):
                self.classes, self.n_sites = task.classes, task.n_sites

            def sites(self):
                return [f"site-{k + 1}" for k in range(self.n_sites)]

            def site_data(self, site):
                return self

            def fixed(self, split, size):
                return []

        self.classes = {d.title: len(load(*d.task.split(":"), **d.settings).classes) for d in table.data}
        empty = tabulate.model.Table("x", table.title, (), (), table.stub, "")
        with monkeypatch.context() as patched:
            patched.setattr(tasks, "load", lambda *args, **options: Empty(load(*args, **options)))
            return paper_panels.counts(table, empty, [(d.key, d.title, d.task, d.settings) for d in table.data])

    def words(self, title):
        known = IN_EXHIBIT.get(self.name, {}) | {}
        for mapping in (known, IN_PAPER.get(self.paper, {}), AS_PRINTED):
            if title in mapping:
                return mapping[title]
        return title

    def folded(self, titles):
        """In the paper's words; parts of one printed cell as one. The titles must differ."""
        assert len(set(titles)) == len(titles), titles
        return [word for word, _ in groupby(self.words(title) for title in titles)]

    def data(self):
        return one([[self.words(data.title) for data in table.data] for table in self.tables])

    def rows(self):
        (table,) = self.made
        if self.tables[0].draw == "counts":
            groups = {tuple(r.title for r in rows) for _, rows in groupby(table.rows, key=lambda row: row.group)}
            return [list(rows) for rows in groups][0] if len(groups) == 1 else groups
        return self.folded([row.title for row in table.rows])

    def parts(self):
        (table,) = self.made
        return list(dict.fromkeys(self.words(row.group.rpartition(", ")[2]) for row in table.rows))

    def groups(self):
        return [self.words(row.group) for row in self.made[0].rows]

    def columns(self):
        (table,) = self.made
        if self.tables[0].draw == "counts":
            titles = [column.title for column in table.columns]
            return {self.words(title): titles[:count] for title, count in self.classes.items()}
        if self.tables[0].draw == "heat":
            return [self.words(column.title.rpartition(", ")[2]) for column in table.columns]
        groups = groupby(table.columns, key=lambda column: column.group)
        found = {self.words(group): self.folded([c.title for c in columns]) for group, columns in groups}
        if set(found) == {""}:
            return found[""]
        assert list(found)[: len(self.data())] == self.data()
        found = {data: found[data] for data in self.data()}
        return found if isinstance(self.printed["columns"], dict) else one(list(found.values()))

    def after(self):
        return [column.title for column in self.made[0].columns if not column.group]

    def methods_across(self):
        return self.tables[0].transposed

    def beside(self):
        return not self.tables[0].transposed and len(self.tables) == 1

    def spread(self):
        """Where a paper prints none there may be that over the seeds that run here."""
        (spread,) = {table.spread for table in self.tables}
        fifteen = spread == "last-rounds" and all(table.ddof == 0 for table in self.tables)
        allowed = {"seeds": "seeds", "last-rounds": "seeds, last five rounds" if fifteen else "?"}
        return "" if self.printed["spread"] == "" and spread in ("", "seeds") else allowed.get(spread, spread)

    def ddof(self):
        given = [column.given for table in self.tables for block in table.blocks for column in block.columns]
        return one([found["ddof"] for found in given if found.get("which") == "std"])

    def x(self):
        kinds = {"rounds": "round", "layers": "layer", "curve": "value"}
        return one([kinds.get(table.draw, table.draw) for table in self.tables])

    def lines(self):
        """Groups of rows where these are points of curves, else rows."""
        found = []
        for table, made in zip(self.tables, self.made):
            points = table.draw == "curve"
            titles = list(dict.fromkeys(row.group if points else row.title for row in made.rows))
            if table.draw == "layers":
                titles = list(PAIRS)
            found.append([word for word, _ in groupby(self.words(title) for title in titles if title)])
        order = self.printed["lines"]
        assert isinstance(order[0], list) or all(len(set(t)) == len(t) for t in found)
        known = all(set(titles) <= set(map(str, order)) for titles in found)
        return one([sorted(titles, key=order.index) if known else titles for titles in found])

    def measures(self):
        found = []
        for table in self.tables:
            columns = {column.key: column for block in table.blocks for column in block.columns}
            read = [column.given.get("which", column.given.get("name")) for column in columns.values()]
            if table.draw in DRAWN:
                found.append([DRAWN[table.draw]])
            elif table.draw == "bars" and {column.measure for column in columns.values()} == {"relative-weights"}:
                found.append([table.axes[1]])
            elif table.draw in ("rounds", "heat"):
                found.append([OF_ROUNDS[self.paper, which] for which in read])
            else:
                means = {} if table.draw == "bars" else OF_GROUPS
                of = [means.get((c.measure, which), c.title) for c, which in zip(columns.values(), read)]
                found.append([self.words(title) for title in of])
        return one(found)

    def swept(self):
        wanted = self.printed["swept"]
        per_table = wanted if isinstance(wanted, list) else [wanted] * len(self.tables)
        return one([self.values(table, names) for table, names in zip(self.tables, per_table, strict=True)])

    def values(self, table, names):
        found = {}
        for name, printed in names.items():
            rows = [row for row in table.rows if row.is_for(False)]
            if name.startswith("share"):
                given = [row.title.removesuffix(" %") for row in rows]
            else:
                ours = [row for row in rows if split_method(row.label)[0] in OWN or name == "alpha"]
                settings = [{**split_method(row.label_on(table.data[0]))[1], **row.values} for row in ours]
                given = [values[key] for values in settings for key in SETTINGS[name] if key in values]
            values = list(dict.fromkeys(float(value) for value in given))
            ends = self.printed.get("ends_only")
            assert not ends or len(values) > len(printed)
            found[name] = [values[0], values[-1]] if ends else values
        return found

    def ends_only(self):
        return True

    def panel_count(self):
        return sum(len(table.blocks) for table in self.tables)

    panel_columns = panel_count

    def tuned(self):
        """Settings of which each point shows the best."""
        rows = [row for table in self.tables for row in table.rows if row.one_of.startswith("FedISM+")]
        values = list(dict.fromkeys(split_method(row.label)[1]["rho_tau"] for row in rows))
        return {"tau": [float(value) for value in values]}

    def clients(self):
        return sorted({int(row.values["n_sites"]) for table in self.tables for row in table.rows})

    def fixed(self):
        (table,) = self.tables
        methods = {split_method(row.label_on(data))[0] for row in table.rows for data in table.data}
        settings = [split_method(row.label_on(data))[1] for row in table.rows for data in table.data]
        assert methods == {"fedheal"} and all(set(own) == {"tau"} for own in settings)
        return {"beta": make_config("fedheal", table.data[0].task).settings["rule.beta"]}

    def alone_and_with(self):
        titles = [row.title for row in self.tables[0].rows]
        return sorted({other.removeprefix(f"{host} + ") for host, other in zip(titles[::2], titles[1::2])})

    def alpha(self):
        return one([[self.alpha_of(table, data) for data in table.data] for table in self.tables])

    def alpha_of(self, table, data):
        """Of the user's copy: the preset's unless data, table or all rows set it."""
        of_rows = {row.values["alpha"] for row in table.rows if "alpha" in row.values}
        given = {**data.settings, **table.values, **({"alpha": of_rows.pop()} if len(of_rows) == 1 else {})}
        name, _, preset = data.task.partition(":")
        return float(given.get("alpha", getattr(tasks.load(name, preset), "alpha", "?")))

    def tested_at(self):
        options = {column.given["options"] for column in self.tables[0].blocks[0].columns}
        return [float(option.removeprefix("alpha=")) for option in options]

    def part(self):
        measured = {column.measure for table in self.tables for block in table.blocks for column in block.columns}
        return "validation" if measured == {"rounds"} else str(measured)

    def smoothed(self):
        return all(table.smooth > 2 for table in self.tables)

    def snapshots(self):
        rounds = [{"round": t, "notes": {}} for t in range(1, 201)]
        run = measures.Run({"sites": {"a": {}}, "detail": {"rounds": rounds}})
        return len(measures.note_rounds(run, measures.Beside(), "free_rider_score"))

    def pictures(self):
        return all(table.draw == "pictures" for table in self.tables)


PAIRS = ("pair 1", "pair 2")
OWN = ("fedism", "fedism-plus", "fedheal", "fedufo")


def test_the_transcription_has_every_exhibit_of_the_five_papers():
    assert set(PRINTED) == set(OURS) and len(PRINTED) == 49
    assert {name for name, _ in EXCEPTIONS} <= set(PRINTED)


@each("name", list(PRINTED))
def test_an_exhibit_has_the_form_that_its_paper_printed(name, monkeypatch):
    exhibit, printed = OURS[name], PRINTED[name]
    shown = Shown(name, exhibit, monkeypatch, printed)
    for fact, value in printed.items():
        if value is None:
            assert all(table.structure or table.note for table in exhibit.tables), fact
        else:
            found, expected = getattr(shown, fact)(), EXCEPTIONS.get((name, fact), (value, ""))[0]
            assert found == expected, (fact, found, expected)
