# SPDX-License-Identifier: Apache-2.0
"""``from fairflare import Federation``: the command line's runs in Python, with the same checks and the same bits."""

from __future__ import annotations

import contextlib
import html
import inspect
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairflare.core import registry, user_code
from fairflare.core.errors import UserError
from fairflare.core.lab import CACHE
from fairflare.core.signals import command
from fairflare.core.validation import expected, shown
from fairflare.engine.files import CONFIG, MODEL, read_json, read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig
from fairflare.report import PAGE, REPORT
from fairflare.report.write import verify_run
from fairflare.studies import display
from fairflare.studies.run_file import SUFFIXES, RunFile, read_run_file, say_reasons
from fairflare.studies.runs import as_before, default_folder, execute_deployed, report_again, run_once, title
from fairflare.studies.study import Study, arms, benefit_table, groups_table, history_table, sites_table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from fairflare.inference.loaded_run import Opened
    from fairflare.inference.predict import Predictions

Settings = Mapping[str, Any]
Paths = str | os.PathLike[str]


class Report(dict[str, Any]):
    """The content of ``report.json`` (docs/comparing.md says what the numbers mean); called, its page.

    Attributes:
        page: ``report.html``.
    """

    page: Path

    def __call__(self) -> Path:
        """Path of the page, which is written now where the run's folder has none: a private one gets none by itself."""
        if not self.page.is_file():
            report_again(self.page.parent)
        return self.page


class Federation:
    """One federation of a method: what ``fairflare run`` does, from Python.

    The data are a task's, or given to ``fit``: a DataFrame with the rows of all hospitals, or a folder.

    Example:
        >>> from fairflare import Federation                                                    # doctest: +SKIP
        >>> federation = Federation("fedism-plus", rounds=5)                                    # doctest: +SKIP
        >>> federation.fit(df, site="hospital", outcome="died", groups=["sex"], patient="id")   # doctest: +SKIP
        >>> federation.benefit                                                                  # doctest: +SKIP

    Attributes:
        folder: where the run lies; None before ``fit``.
    """

    def __init__(
        self,
        method: str,
        task: str | None = None,
        *,
        settings: Settings | None = None,
        rounds: int | None = None,
        sites: int | None = None,
        seed: int = 0,
        datalists: Paths | None = None,
        kind: str | None = None,
        classes: str | int | Sequence[str] | None = None,
        trainer: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        group_by: str | None = None,
        min_count: int | None = None,
        code: Sequence[Paths] = (),
        accept: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """
        Args:
            method: id, e.g. "fedism-plus"; see ``fairflare list``.
            task: name or name:preset; see ``fairflare tasks``. None: the data are in ``datalists`` or given to ``fit``.
            settings: by any name that ``--set`` takes, flat or by owner: {"rule.q": 2} is {"rule": {"q": 2}}.
            rounds: communication rounds, >= 1; the preset's by default, as all that is None.
            sites: number of sites; the preset's by default.
            seed: of the initial model and all local work.
            datalists: folder with a list per site.
            kind: what ``datalists`` or the data of ``fit`` are of.
            classes: their classes or structures, a number or names; of two, the second is the one whose risk is shown.
            trainer: id of another local training than the method's.
            epochs: local epochs per round, >= 1.
            batch_size: cases per local step, >= 2.
            lr: local learning rate, >= 0.
            group_by: groups of patients, e.g. "sex" or "label+sex"; see docs/settings.md.
            min_count: the fewest patients whose number leaves a site, >= 1.
            code: your own files that the run needs.
            accept: preflight's errors that count as warnings.
            options: any other option of ``fairflare run`` by its name: rule, env, out, workers.

        Raises:
            UserError: one line that names the key, what was expected and what came.
        """
        taken = {key: value for key, value in locals().items() if key not in ("self", "options")}
        self._reset({**taken, **options})
        file = _read(self._params)
        own_lists = file.kind and file.classes and "site_names" in str(file.values)
        self._has_data = bool(file.task or file.datalists or file.script or own_lists)
        if self._has_data:
            self._take(file)
        else:
            registry.get_method(method)

    def _reset(self, params: dict[str, Any]) -> None:
        self._params, self._has_data = params, True
        self._file: RunFile | None = None
        self._named: dict[str, str | None] = {}
        self._labels: dict[str, Any] = {}
        self._config: RunConfig | None = None
        self.folder: Path | None = None
        self._site_column = ""

    def _take(self, file: RunFile) -> None:
        with as_before():
            self._config = file.config()
            say_reasons(self._config)
            code = os.environ.get(user_code.VARIABLE)
            self._named = {user_code.VARIABLE: code, CACHE: "off" if file.no_cache else os.environ.get(CACHE)}
        self._file, self.folder = file, None

    @property
    def config(self) -> RunConfig:
        """Every choice of the run, as ``config.json`` has it; not before there are data."""
        if self._config is None:
            raise UserError("Federation: expected data: call fit() first")
        return self._config

    @classmethod
    def from_yaml(cls, path: Paths, **changes: Any) -> Federation:
        """The run that a YAML file describes, as ``fairflare run FILE`` reads it.

        Args:
            path: the file; relative paths in it start at its folder.
            changes: keys of the file that have another value here, see ``__init__``; ``settings`` win one by one.
        """
        file = os.fspath(path)
        expected("from_yaml", file.endswith(SUFFIXES), f"a file named {' or '.join(f'*{s}' for s in SUFFIXES)}", file)
        made = cls._bare(method=file, **changes)
        changed = _read({key: value for key, value in changes.items() if key != "method"})
        given = {name: getattr(changed, name) for name in changed.model_fields_set}
        made._take(read_run_file(Path(path)).beneath(given))
        return made

    @classmethod
    def _bare(cls, **params: Any) -> Federation:
        made = cls.__new__(cls)
        made._reset(params)
        return made

    @classmethod
    def open(cls, folder: Paths) -> Federation:
        """The finished run in ``folder``; raises UserError where none is, or where its files do not fit together."""
        place = Path(folder)
        verify_run(place)
        if not (place / REPORT).is_file():
            raise UserError(f"{place}: has no {REPORT}; {command('report', place)} writes it")
        made = cls._bare()
        made._config, made.folder = RunConfig.from_json(read_json(place / CONFIG)), place
        made._params = {"method": made.config.method, "task": f"{made.config.task}:{made.config.preset}"}
        return made

    def fit(
        self,
        data: pandas.DataFrame | Paths | None = None,
        *,
        site: str = "",
        outcome: str = "",
        groups: Sequence[str] = (),
        patient: str = "",
        time: str = "",
        event: str = "",
        horizons: str | float | Sequence[float] = "",
        categories: Sequence[str] = (),
        leave_out: Sequence[str] = (),
        keep: Sequence[str] = (),
        missing: Sequence[str] = (),
        data_folder: Paths | None = None,
        out: Paths | None = None,
        env: str | None = None,
        workers: int | None = None,
        force: bool = False,
        progress: bool = True,
    ) -> Federation:
        """Run the federation into a folder, and return it.

        A finished run of the very same configuration in the folder is taken as it is, one cut short goes on; of a table
        where ``data_folder`` is the same. A table is read, checked and divided as by ``fairflare init``: what may be
        read in two ways is refused with both readings.

        Args:
            data: a DataFrame or a table's file with the rows of all hospitals, a folder that ``fairflare init`` has
                looked at, or a task's name. Where ``__init__`` was given data: ``out``.
            site: the column of the hospital. This and the following: of a table, "" for what its columns' names say.
            outcome: the column of what is predicted.
            groups: columns by which patients are grouped; ages become bands.
            patient: the column that says who it is, "none": each row is another; nobody is in two splits.
            time: of survival, the column of times.
            event: of survival, the column that is 1 where there was an event, else 0. Without ``time``: of two classes
                the one whose risk is predicted, the last of ``classes_``; by default what names such as "yes" say.
            horizons: until when survival is asked for: 1, "1,5" or [1, 5], in the unit of ``time``.
            categories: columns of numbers that are codes.
            leave_out: columns that are no predictors.
            keep: predictors that are known before the outcome, whatever their names say.
            missing: cells that stand for a missing value.
            data_folder: keeps what was read of a table; by default a private folder that goes with this object.
            out: the run's folder; by default that of the command line, below ``runs``, and of a table the private one.
            env: "local", or "sim" for FLARE's simulator.
            workers: processes that compute side by side; a fork of one that has used torch may not be safe.
            force: replaces another run in the folder.
            progress: shows how far it is on stderr.

        Raises:
            UserError: the folder holds another run, the data are not there, or a table may be read in two ways.
            RunFailed: the federation stopped; the folder keeps its last good model.
        """
        given, page = locals(), True
        reading = {key: given[key] for key in (*WORDS, *LISTS)}
        if self._has_data:
            if data is not None and not isinstance(data, (str, os.PathLike)):
                raise UserError("fit: expected no data, since Federation was given a task or a folder")
            out = out if data is None else data
        else:
            if data is None:
                raise UserError("fit: expected data: a DataFrame, a folder or a task; or Federation(METHOD, TASK)")
            with contextlib.nullcontext() if progress else display.silent():
                own = self._use(data, reading, data_folder, out)
            out, page = own, out is not None or own is None
        if (file := self._file) is None:
            raise UserError("fit: the run was opened, and has ended; a new Federation begins another")
        count = workers if workers is not None else file.workers or 1
        deployment = file.deployment(file.workers)
        folder = Path(out) if out is not None else file.out or default_folder(self.config)
        with as_before(self._named, progress):
            if deployment and env is None:
                execute_deployed(self.config, folder, force=force, **deployment)
            else:
                run_once(self.config, folder, env=env or file.env, force=force, workers=count, page=page)
        self.folder = folder
        self.__dict__.pop("report", None)
        return self

    def _use(self, data: Any, reading: Settings, data_folder: Paths | None, out: Paths | None) -> Paths | None:
        """Make the run of data that were given to ``fit``; returns where it goes."""
        from fairflare.engine.setup.config import asks_by_itself, with_benefit

        more, private = _located(data, reading, data_folder, self._params)
        if private:
            self._private = weakref.finalize(self, shutil.rmtree, private, ignore_errors=True)
        file = _read({**self._params, **more})
        self._take(file)
        if not {"solo", "run.solo"} & file.values.keys():
            self._config = with_benefit(self.config, asks_by_itself(self.config))
        self._site_column = reading["site"]
        label = self.config.options.get("label")
        if not isinstance(data, (str, os.PathLike)) and label in data.columns:
            from fairflare.data.readers.tables import as_cell

            self._labels = {as_cell(value): value for value in data[label].dropna().unique()}
        return out if out is not None or not private else private / "run"

    @property
    def _finished(self) -> Path:
        if self.folder is None:
            raise UserError("Federation: expected a run that has ended; call fit() first, or open a folder")
        return self.folder

    @cached_property
    def report(self) -> Report:
        """The content of ``report.json``; ``report()`` is the path of ``report.html``."""
        found = Report(read_json(self._finished / REPORT))
        found.page = self._finished / PAGE
        return found

    @property
    def groups(self) -> pandas.DataFrame:
        """A row per group of patients, pooled over the sites that may say it, on their test splits.

        Columns: ``group``, ``metric``, ``n``, ``value``, ``sites``, and ``lowest`` and ``highest`` with their sites.
        """
        return groups_table(self.report)

    @property
    def history(self) -> pandas.DataFrame:
        """A row per round and site: the received model's ``value`` in ``metric`` on its validation split, ``weight``,
        and whether its update was ``accepted``."""
        return history_table(self.report)

    @property
    def benefit(self) -> pandas.DataFrame:
        """A row per metric and site, then per group of patients at a site: what joining brings (docs/benefit.md).

        Columns: ``site``, ``group`` ("": all its patients), ``metric``, ``n``, ``federated`` and ``solo`` model's
        value, ``benefit`` (above 0 the federation's is better) with its 95 % interval ``low`` and ``high`` over test
        patients, ``verdict``.
        """
        return benefit_table(self.report)

    @property
    def advice(self) -> dict[str, Any]:
        """What to try next, of a run of the method "signs": see ``report.advice.advice_on``."""
        from fairflare.report.advice import advice_on, signs_of

        return advice_on(signs_of(self._finished))

    @property
    def plot(self) -> Plots:
        """Its figures."""
        return Plots(self.report)

    @property
    def classes_(self) -> np.ndarray:
        """(C,) the classes, as the DataFrame of ``fit`` spells them, in the order of ``predict_proba``."""
        return np.array([self._labels.get(name, name) for name in self.report["detail"]["task"]["classes"]])

    @property
    def sites(self) -> pandas.DataFrame:
        """A row per site: kind, numbers of examples, the final model's metrics on its own test and validation split.

        Columns: ``kind``, ``n_train``, ``n_val``, ``n_test``, each metric, the same with ``val_`` before it, those of
        personal models with ``personal_``, and ``weight``, the mean over the rounds in which it was part of the model.
        """
        return sites_table(self.report)

    @property
    def weights(self) -> pandas.DataFrame:
        """Each site's aggregation weight in each round; NaN where it was not part of it."""
        import pandas

        found = {name: site["weight"] for name, site in self.report["sites"].items()}
        made = pandas.DataFrame(found, dtype=float)
        made.index = pandas.RangeIndex(1, len(made) + 1, name="round")
        return made

    def predict(
        self,
        inputs: pandas.DataFrame | Paths | Sequence[Paths],
        *,
        site: str = "",
        which: str = "",
        plain: bool = False,
        out: Paths | None = None,
    ) -> Any:
        """The model on new images or the rows of a table, as ``fairflare predict`` does it (docs/using-a-model.md).

        Args:
            inputs: files, a folder, or one table; or a DataFrame with the columns of ``fit`` but the outcome.
            site: whose model, scaling and thresholds are used; empty: the shared model alone.
            which: "final" or "best".
            plain: neither recalibration nor thresholds.
            out: keeps the results in this new folder, which masks need.

        Returns:
            Of a DataFrame with N rows, for a model of classes, (N,) of ``classes_``. Else a DataFrame with a row per
            case and the index of ``inputs``; ``attrs["unlike"]`` says what is unlike the training.

        Raises:
            UserError: something cannot be read, or masks have nowhere to go.
        """
        import pandas

        found = self._predicted(inputs, site, which, plain, out)
        if isinstance(inputs, pandas.DataFrame) and found.probabilities.size:
            return self.classes_[found.probabilities.argmax(axis=1)]
        index = inputs.index if isinstance(inputs, pandas.DataFrame) else None
        made = pandas.DataFrame(found.rows, columns=found.header, index=index)
        made.attrs["unlike"] = list(found.unlike)
        return made

    def predict_proba(
        self, data: pandas.DataFrame, *, site: str = "", which: str = "", plain: bool = False
    ) -> np.ndarray:
        """(N, C) float64: the probability of each of ``classes_`` for each of N rows.

        Args:
            data: the rows, with the columns of ``fit``.
            site: as of ``predict``, with ``which`` and ``plain``.
            which: "final" or "best".
            plain: neither recalibration nor thresholds.

        Raises:
            UserError: the model is not one of classes.
        """
        found = self._predicted(data, site, which, plain, None)
        if not found.probabilities.size:
            raise UserError("predict_proba: expected a model of classes; predict gives what this one says")
        return found.probabilities

    def _predicted(self, inputs: Any, site: str, which: str, plain: bool, out: Paths | None) -> Predictions:
        from fairflare.inference.atomic_output import whole_folder
        from fairflare.inference.predict import predict

        with self._opened(site, which, plain) as (opened, scratch):
            if out is None and opened.task.kind.has_masks:
                raise UserError("predict: masks are files; expected out=FOLDER")
            if not isinstance(inputs, (str, os.PathLike, list, tuple)):
                inputs = _written(inputs, Path(scratch, "data.csv"))
            named = [Path(one) for one in ([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)]
            results = Path(scratch, "results")
            results.mkdir()
            with (
                contextlib.nullcontext(results)
                if out is None
                else whole_folder(Path(out), "predictions", force=False) as folder
            ):
                return predict(opened, named, folder)

    @contextlib.contextmanager
    def _opened(self, site: str, which: str, plain: bool) -> Iterator[tuple[Opened, str]]:
        """Within: the run in use, and a folder of its own for files."""
        from fairflare.inference.loaded_run import open_run

        with as_before(self._named), tempfile.TemporaryDirectory(prefix="fairflare_") as scratch:
            yield open_run(self._finished, site, which=which, plain=plain), scratch

    def evaluate(
        self,
        data: pandas.DataFrame | Paths,
        *,
        site: str = "",
        outcome: str = "",
        name: str = "",
        group_by: str = "",
        min_count: int | None = None,
        recalibrate: str = "",
        which: str = "",
    ) -> pandas.DataFrame:
        """The model on labelled data of hospitals that did not train it, as ``fairflare evaluate`` does it.

        Args:
            data: a DataFrame, or what ``fairflare evaluate`` takes.
            site: a DataFrame's column of the hospital; that of ``fit`` by default, where it is there.
            outcome: its column of the outcome; the run's by default.
            name: what one hospital is called.
            group_by: groups of patients; what the run knows by default.
            min_count: the fewest patients whose numbers are told, >= 1; the run's by default.
            recalibrate: "intercept" or "slope": also with a fit to the other half of the patients.
            which: "final" or "best".

        Returns:
            A row per hospital and metric: ``site``, ``metric``, ``n``, ``value``, 95 % interval ``low`` and ``high``,
            ``trivial`` (of one answer for all). ``attrs["evaluation"]``: the content of ``evaluation.json``.

        Raises:
            UserError: a hospital took part in the training, or its data do not fit the run.
        """
        import pandas

        from fairflare.import_data.write import by_column
        from fairflare.inference import external
        from fairflare.inference.loaded_run import hospitals, refuse_trained

        with self._opened("", which, True) as (opened, scratch):
            place = data
            if isinstance(data, pandas.DataFrame):
                column = site or (self._site_column if self._site_column in data.columns else "")
                place = Path(scratch)
                for called, rows in (by_column(data, column) if column else {"data": data}).items():
                    _written(rows, place / f"{called}.csv")
            found = hospitals(opened, Path(place), name)
            try:
                refuse_trained(opened, found)
            except UserError as error:
                raise UserError(f"{str(error).partition(': --')[0]}: .sites has its test patients' results") from None
            asked = external.Asked(label=outcome, group_by=group_by, min_count=min_count, recalibrate=recalibrate)
            content, remarks = external.evaluate(opened, found, asked)
        numbers = ("value", "low", "high", "trivial")
        rows = [
            (called, metric, one["n"], *(own[key] for key in numbers))
            for called, one in content["sites"].items()
            for metric, own in one["metrics"].items()
        ]
        made = pandas.DataFrame(rows, columns=["site", "metric", "n", *numbers])
        made.attrs |= {"evaluation": content, "remarks": remarks}
        return made

    def export(self, out: Paths, form: str = "bundle", *, site: str = "", which: str = "", force: bool = False) -> Path:
        """Write the model for other programs, as ``fairflare export-model`` does; returns the folder.

        Args:
            out: the new folder.
            form: "bundle", "torchscript", "onnx" or "state-dict".
            site: whose model, scaling and thresholds are used; empty: the shared model alone.
            which: "final" or "best".
            force: replaces an earlier export.

        Raises:
            UserError: the run's inputs cannot be part of a model, or a package is missing.
        """
        from fairflare.cli.model import FORMATS
        from fairflare.inference.atomic_output import whole_folder
        from fairflare.inference.export import export_model

        expected("form", form in FORMATS, f"one of {', '.join(FORMATS)}", form)
        with self._opened(site, which, False) as (opened, _), whole_folder(Path(out), "model", force=force) as folder:
            for line in export_model(opened, form, folder):
                display.note(line)
        return Path(out)

    def decide(
        self,
        *others: Federation,
        methods: bool = False,
        folds: int = 5,
        repeats: int | None = None,
        threshold: float | None = None,
        worthwhile: float = 0.0,
        own_model: str = "ridge",
        shared_patients: bool = False,
        outside: Sequence[str] = (),
        out: Paths | None = None,
        workers: int | None = 1,
        force: bool = False,
        progress: bool = True,
    ) -> pandas.DataFrame:
        """Alone, use, or join: a row per hospital, see docs/decision.md.

        On a table of two classes it needs one federated regression of its own, whatever the method of this federation.

        Args:
            others: further federations on the same data whose models are compared with the own ones.
            methods: whether this federation's model is compared, too; it is where there are others. Both need a
                training for every fold.
            folds: K.
            repeats: deals of folds; None: 10, where models are compared 3.
            threshold: the risk from which on the clinic treats, in (0, 1).
            worthwhile: the smallest net benefit per patient that matters.
            own_model: of a hospital alone: "ridge", "trees", or "module.Name" of a class in a file of yours.
            shared_patients: some patients are at several hospitals, and are dealt alike.
            outside: hospitals without which compared models train once more, for what using them brings.
            out: the folder, for ``decision.json``, ``join.html``, sheets and models; by default one below ``runs``.
            workers: processes that compute side by side.
            force: makes all runs again.
            progress: shows how far they are on stderr.

        Returns:
            Columns ``verdict``, ``participation``, ``reason``, ``p_false``, ``patients``, ``margin``, ``share`` (of the
            safe mix), of each of ``U``, ``J``, ``D`` the gain in Brier score, ``_low`` and ``_high`` of its 95 %
            interval, and the same of each method; NaN without one. ``attrs["decision"]`` has the content of
            ``decision.json``.

        Raises:
            UserError: methods of one name or of different data; a task that cannot be asked.
        """
        import pandas

        from fairflare.decision.sums import Plan
        from fairflare.studies.join import asked, measure

        compared = methods or bool(others)
        plan = Plan(folds, repeats or (3 if compared else 10), threshold, worthwhile, own_model, shared_patients)
        question = asked([one.config for one in (self, *others)], plan, compared, outside)
        folder = Path(out) if out is not None else Path(f"{default_folder(self.config)}-decision")
        with as_before(self._named, progress):
            found = measure(question, folder, force=force, workers=workers)
        by_method = found.get("methods", {})
        parts = (("", "value"), ("_low", "low"), ("_high", "high"))
        names = dict.fromkeys([*found["sites"], *(site for of in by_method.values() for site in of["sites"])])
        rows = {}
        for site in names:
            one = found["sites"].get(site, {})
            row = {key: one.get(key) for key in ("verdict", "participation", "reason", "p_false", "patients", "margin")}
            each = {key: one.get("estimands", {}).get(key, {}) for key in ("U", "J", "D")}
            each |= {label: of["sites"].get(site, {}) for label, of in by_method.items()}
            ends = {f"{key}{end}": of.get(name) for key, of in each.items() for end, name in parts}
            rows[site] = {**row, "share": one.get("mix", {}).get("share"), **ends}
        table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("hospital")
        table.attrs["decision"] = found
        return table

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The final model's entries, on the CPU."""
        return read_model(self._finished / MODEL)

    @property
    def model_sha256(self) -> str:
        """The final model's hash, as the audit log has it: equal hashes are equal bits."""
        return model_hash(self.state_dict())

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: of a run in the private folder its files too, of which none holds patients' rows."""
        state = {key: value for key, value in self.__dict__.items() if key not in ("_private", "report")}
        private, run = self.__dict__.get("_private"), self.folder
        if private and run and private.alive and private.peek()[2][0] in run.parents:
            state["_run"] = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_run", None)
        self.__dict__ |= state
        if files is not None:
            private = Path(tempfile.mkdtemp(prefix="fairflare_"))
            self._private = weakref.finalize(self, shutil.rmtree, private, ignore_errors=True)
            self.folder = private / "run"
            for name, content in files.items():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_bytes(content)

    def __repr__(self) -> str:
        called = title(self._config) if self._config else self._params["method"]
        return f"<Federation: {called}; {self.folder or 'not run'}>"

    def _repr_html_(self) -> str:
        table = "" if self.folder is None else self.sites.round(3).to_html(border=0)
        return f"<p>{html.escape(repr(self))}</p>{table}"


class Plots:
    """A finished run's figures, as its page has them: ``savefig`` writes them, a notebook shows them."""

    def __init__(self, report: Settings) -> None:
        """
        Args:
            report: the content of ``report.json``.
        """
        self._summary = report["detail"]

    def benefit(self, metric: str = "") -> Figure:
        """What joining brings each hospital, with 95 % intervals over its test patients.

        Args:
            metric: one of the run's that benefit is told in; "": the first.
        """
        from fairflare.report.benefit import draw_benefit

        found = (self._summary.get("benefit") or {}).get("metrics") or {}
        if not found or (metric or next(iter(found))) not in found:
            raise UserError(f"plot.benefit: expected one of {', '.join(found) or 'no metric: the run has not asked'}")
        return _figure("benefit", partial(draw_benefit, one=found[metric or next(iter(found))]))

    def history(self) -> Figure:
        """The received model's metric over the rounds, on the sites' validation splits."""
        from fairflare.report.rounds import metric_rounds

        return _figure("history", partial(metric_rounds.__wrapped__, summary=self._summary))  # type: ignore[attr-defined]  # the drawing under the SVG

    def weights(self) -> Figure:
        """Each site's aggregation weight over the rounds."""
        from fairflare.report.rounds import weight_rounds

        return _figure("weights", partial(weight_rounds.__wrapped__, summary=self._summary))  # type: ignore[attr-defined]  # the drawing under the SVG


def _figure(key: str, draw: Any) -> Figure:
    from fairflare.report.svg import drawing, svg_of

    figure, named = drawing(draw)
    if named is None:
        raise UserError(f"plot.{key}: the run has no values to draw")
    setattr(figure, "_repr_svg_", partial(svg_of, figure, key, named))  # noqa: B010  # what a notebook looks for
    return figure


WORDS = ("site", "outcome", "patient", "time", "event", "horizons")
LISTS = ("groups", "categories", "leave_out", "keep", "missing")
"""Keywords of ``Federation.fit`` that say how a table is read, "outcome" being a label: a text, or several."""
TYPED = {"epochs": "train.epochs", "batch_size": "train.batch_size", "lr": "train.lr"}
TYPED |= {"group_by": "group_by", "min_count": "min_count"}
"""Keyword of ``Federation`` -> the setting that it is."""


def _located(
    data: Any, reading: Settings, folder: Paths | None, params: Settings
) -> tuple[dict[str, Any], Path | None]:
    """Keywords of ``Federation`` for data given later, and the private folder that was made for them, if one was.

    Args:
        data: see ``Federation.fit``.
        reading: those of ``WORDS`` and ``LISTS`` that are given.
        folder: where what is read of a table is kept; None: a private one.
        params: of the federation, of which kind and classes say how a table is read.
    """
    from fairflare.engine.setup.tasks import every

    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if isinstance(data, str) and data.partition(":")[0] in every():
            return {"task": data}, None
        if path.is_dir():
            return {"datalists": data}, None
        if not path.is_file():
            raise UserError(f"fit: {shown(str(data))}: expected a table's file, a folder or a task, found none")
        from fairflare.data.readers.tables import read_table

        data = read_table(path)
    if not hasattr(data, "columns"):
        raise UserError(f"fit: expected a DataFrame, a table's file, a folder or a task, got {type(data).__name__}")
    from fairflare.import_data import write
    from fairflare.import_data.proposal import Choices

    private = None if folder is not None else Path(tempfile.mkdtemp(prefix="fairflare_"))
    classes = params.get("classes") or ()
    lists = {key: [one] if isinstance(one := reading.get(key) or (), str) else one for key in LISTS}
    lists["classes"] = classes.split(",") if isinstance(classes, str) else () if isinstance(classes, int) else classes
    told: dict[str, Any] = {key: tuple(str(one).strip() for one in values) for key, values in lists.items()}
    if not isinstance(ends := reading.get("horizons"), (str, type(None))):
        reading = {**reading, "horizons": ",".join(f"{one:.12g}" for one in np.unique(np.asarray(ends, dtype=float)))}
    told |= {"label" if key == "outcome" else key: reading.get(key) or "" for key in WORDS}
    if reading.get("event") not in (None, "") and not reading.get("time"):
        told |= {"event": "", "classes": _event_last(data, reading, told["classes"])}
    try:
        chosen = Choices(**told, kind=params.get("kind") or "")
        found = write.imported(data, Path(folder) if private is None else private, chosen)  # type: ignore[arg-type]  # one is there
    except BaseException:
        if private:
            shutil.rmtree(private, ignore_errors=True)
        raise
    for line in (*found.suspects, *found.notes):
        display.note(line)
    if found.form.classes and len(found.classes) == 2:
        other, last = found.classes
        display.note(f"the risk is that of {last}; event={other!r}: of {other}")
    more: dict[str, Any] = {"datalists": private or folder, "kind": None, "classes": None}
    if told["groups"] and not params.get("group_by"):
        more["group_by"] = write.grouping(told["groups"])
    return more, private


def _event_last(data: pandas.DataFrame, reading: Settings, classes: Sequence[str]) -> tuple[str, ...]:
    """Both classes as a table's cells spell them, ``event`` as the second."""
    from fairflare.data.readers.tables import as_cell
    from fairflare.import_data.proposal import is_missing

    outcome, event = reading["outcome"], as_cell(reading["event"])
    expected("outcome", outcome in data.columns, "a column with two classes, as event names one of them", outcome)
    cells = {as_cell(one).strip() for one in data[outcome].dropna().unique()}
    others = sorted(one for one in classes or cells if one != event and not is_missing(one))
    expected("event", event in cells and len(others) == 1, f"one of two classes: {', '.join((*others, event))}", event)
    return (others[0], event)


def _written(frame: pandas.DataFrame, path: Path) -> Path:
    from fairflare.import_data.write import text_of

    path.write_text(text_of(frame), encoding="utf-8")
    return path


def compare(
    methods: str | Sequence[str],
    data: pandas.DataFrame | Paths | None = None,
    *,
    seeds: Sequence[int] = (0,),
    solo: bool = False,
    out: Paths | None = None,
    workers: int | None = 1,
    force: bool = False,
    progress: bool = True,
    **options: Any,
) -> Study:
    """Methods on the same data, first models and seeds, as ``fairflare compare`` compares them (docs/comparing.md).

    Args:
        methods: ids, each with settings of its own if any: "fedism-plus:state=L,q=1".
        data: a task's name, a DataFrame, a table's file or a folder; None: ``task`` or ``datalists`` say it.
        seeds: different numbers >= 0; each draws the data anew where a task draws them.
        solo: sites also report the benefit of joining.
        out: the folder, which gets ``compare.html`` and ``compare.json`` too; by default that of the command line.
        workers: processes that compute side by side.
        force: makes all runs again.
        progress: shows how far they are on stderr.
        options: those of ``Federation`` for all methods, and those of ``Federation.fit`` that say how a table is read.

    Returns:
        The finished runs, whose ``table`` has a row per run, ``sites`` one per run and site.

    Raises:
        UserError: a name or a setting is wrong, or a method would not have the others' data.
    """
    from fairflare.engine.setup.config import can_ask, with_benefit
    from fairflare.studies.comparison import compare_all
    from fairflare.studies.labels import comparison_name

    names = [methods] if isinstance(methods, str) else list(methods)
    with as_before(progress=progress):
        given, private = _for_all(data, options)
        task, choices = _read(given).choices()
        configs = arms(names, task, seeds, **choices)
        if solo:
            configs = [(name, with_benefit(config, can_ask(config))) for name, config in configs]
        shared = {**choices, "fixed_data": False, "env": "local", **({"solo": True} if solo else {})}
        named = comparison_name(task, shared)
        folder = Path(out) if out is not None else (private or Path("runs")) / named
        compare_all(configs, folder, workers=workers, force=force)
    found = Study.open(folder)
    if private:
        weakref.finalize(found, shutil.rmtree, private, ignore_errors=True)
    return found


def decide(
    task: pandas.DataFrame | Paths | None = None, methods: str | Sequence[str] = (), **options: Any
) -> pandas.DataFrame:
    """Alone, use, or join: ``fairflare join`` from Python, as ``Federation.decide``.

    Args:
        task: of two classes, or a DataFrame, a table's file or a folder; None: your own data in ``datalists``.
        methods: ids of methods whose models are compared with the own ones.
        options: those of ``Federation`` for all methods, those of ``Federation.fit`` that say how a table is read, and
            those of ``Federation.decide``.
    """
    names = [methods] if isinstance(methods, str) else list(methods)
    how = {key: options.pop(key) for key in DECIDE_OPTIONS if key in options}
    given, private = _for_all(task, options)
    first, *others = (Federation(name, **given) for name in names or ["fedavg"])
    if private:
        how.setdefault("out", private / "join")
    found = first.decide(*others, methods=bool(names), **how)
    if private:
        weakref.finalize(found, shutil.rmtree, private, ignore_errors=True)
    return found


def _for_all(data: Any, options: dict[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """Keywords of ``Federation`` for several of them, and the private folder of their data, if one was made."""
    table = hasattr(data, "columns") or (isinstance(data, (str, os.PathLike)) and Path(data).is_file())
    reading = {key: options.pop(key) for key in (*WORDS, *LISTS) if table and key in options}
    folder = options.pop("data_folder", None)
    more, private = ({}, None) if data is None else _located(data, reading, folder, options)
    return {**options, **more}, private


DECIDE_OPTIONS = tuple(inspect.signature(Federation.decide).parameters.keys() - {"self", "others", "methods"})


def _read(given: Settings) -> RunFile:
    """What keywords of ``Federation`` stand for; those that are None are left out."""
    kept = {key: value for key, value in given.items() if value is not None and key not in ("settings", *TYPED)}
    own = {name: given[key] for key, name in TYPED.items() if given.get(key) is not None}
    values = given.get("settings")
    values = {**(values or {}), **own} if values is None or isinstance(values, Mapping) else values
    return RunFile.read({**kept, **({"set": values} if values else {})}, "Federation")
