# SPDX-License-Identifier: Apache-2.0
"""``from fairflare import Federation``: the command line's runs in Python, with the same checks and the same bits."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

from fairflare.cli.options import cache_option, config_options, out_option, run_options, threads_option, workers_option
from fairflare.cli.run_file import METHOD, SUFFIXES, RunCommand, as_arguments
from fairflare.core import user_code
from fairflare.core.errors import UserError
from fairflare.core.validation import expected
from fairflare.engine.files import CONFIG, MODEL, read_json, read_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig
from fairflare.report import REPORT
from fairflare.report.write import verify_run
from fairflare.studies import display
from fairflare.studies.labels import CACHE
from fairflare.studies.runs import as_before, default_folder, execute_deployed, run_once, title

if TYPE_CHECKING:
    import pandas

    from fairflare.studies.joined import Joined

Settings = Mapping[str, Any]
Paths = str | os.PathLike[str]


class Federation:
    """One federation of a method on a task: what ``fairflare run`` does, from Python.

    Example:
        >>> from fairflare import Federation                                      # doctest: +SKIP
        >>> federation = Federation("fedism-plus", "support2", rounds=5).fit()    # doctest: +SKIP
        >>> federation.sites                                                      # doctest: +SKIP

    Attributes:
        config: every choice of the run, as ``config.json`` has it.
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
        code: Sequence[Paths] = (),
        accept: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """
        Args:
            method: id, e.g. "fedism-plus"; see ``fairflare list``.
            task: name or name:preset; see ``fairflare tasks``. None: your own data in ``datalists``.
            settings: by any name that ``--set`` takes, flat or by owner: {"rule.q": 2} is {"rule": {"q": 2}}.
            rounds: communication rounds; the preset's by default.
            sites: number of sites; the preset's by default.
            seed: of the initial model and all local work.
            datalists: folder with a list per site.
            kind: what ``datalists`` are of.
            classes: their classes or structures, a number or names.
            code: your own files that the run needs.
            accept: preflight's errors that count as warnings.
            options: any other option of ``fairflare run`` by its name: trainer, rule, env, out, workers.

        Raises:
            UserError: one line that names the key, what was expected and what came.
        """
        given: dict[str, Any] = {"method": method, "task": task, "set": settings, "rounds": rounds, "sites": sites}
        given |= {"seed": seed, "datalists": datalists, "kind": kind, "classes": classes}
        given |= {"code": list(code), "accept": list(accept), **options}
        self._take(_arguments(given))

    def _take(self, arguments: list[str]) -> None:
        kept: list[dict[str, Any]] = []
        with as_before({}):
            try:
                _command(kept).main(arguments, prog_name="fairflare run", standalone_mode=False)
            except click.ClickException as error:
                raise UserError(error.format_message()) from None
            self._named = {user_code.VARIABLE: os.environ.get(user_code.VARIABLE), CACHE: kept[0]["cache"]}
        self._options = kept[0]
        self.config: RunConfig = self._options["config"]
        self.folder: Path | None = None

    @classmethod
    def from_yaml(cls, path: Paths, **changes: Any) -> Federation:
        """The run that a YAML file describes, as ``fairflare run FILE`` reads it.

        Args:
            path: the file; relative paths in it start at its folder.
            changes: keys of the file that have another value here, see ``__init__``; ``settings`` win one by one.
        """
        file = os.fspath(path)
        expected("from_yaml", file.endswith(SUFFIXES), f"a file named {' or '.join(f'*{s}' for s in SUFFIXES)}", file)
        given = {"set" if key == "settings" else key: value for key, value in changes.items() if key != METHOD}
        made = cls.__new__(cls)
        made._take([file, *_arguments(given)])
        return made

    @classmethod
    def open(cls, folder: Paths) -> Federation:
        """The finished run in ``folder``; raises UserError where none is, or where its files do not fit together."""
        place = Path(folder)
        verify_run(place)
        if not (place / REPORT).is_file():
            raise UserError(f"{place}: has no {REPORT}; `fairflare report {place}` writes it")
        made = cls.__new__(cls)
        made._options, made._named = {}, {}
        made.config, made.folder = RunConfig.from_json(read_json(place / CONFIG)), place
        return made

    def fit(
        self,
        out: Paths | None = None,
        *,
        env: str | None = None,
        workers: int | None = None,
        force: bool = False,
        progress: bool = True,
    ) -> Federation:
        """Run the federation into a folder, and return it.

        A finished run of the very same configuration in the folder is taken as it is, one cut short goes on.

        Args:
            out: the folder; by default that of the command line, below ``runs``.
            env: "local", or "sim" for FLARE's simulator.
            workers: processes that compute side by side; 1 by default, since a fork of a process that has used torch
                or runs a notebook may not be safe. The bits are the same.
            force: replaces another run in the folder.
            progress: shows how far it is on stderr.

        Raises:
            UserError: the folder holds another run, or the data are not there.
            RunFailed: the federation stopped; the folder keeps its last good model.
        """
        if not self._options:
            raise UserError("fit: the run was opened, and has ended; a new Federation begins another")
        deployment, chosen = self._options["deployment"], env or self._options["env"]
        folder = Path(out) if out is not None else self._options["out"] or default_folder(self.config)
        with as_before(self._named), contextlib.nullcontext() if progress else display.silent():
            if deployment and env is None:
                execute_deployed(self.config, folder, force=force, **deployment)
            else:
                threads = self._options["sim_threads"]
                count = workers if workers is not None else self._options["workers"] or 1
                run_once(self.config, folder, env=chosen, force=force, sim_threads=threads, workers=count)
        self.folder = folder
        self.__dict__.pop("report", None)
        return self

    @property
    def _finished(self) -> Path:
        if self.folder is None:
            raise UserError("Federation: expected a run that has ended; call fit() first, or open a folder")
        return self.folder

    @cached_property
    def report(self) -> dict[str, Any]:
        """The content of ``report.json``: see docs/comparing.md for what the numbers mean."""
        return read_json(self._finished / REPORT)

    @property
    def sites(self) -> pandas.DataFrame:
        """A row per site: kind, numbers of examples, the final model's metrics on its own test and validation split.

        Columns: ``kind``, ``n_train``, ``n_val``, ``n_test``, each metric, the same with ``val_`` before it, those of
        personal models with ``personal_``, and ``weight``, the mean over the rounds in which it was part of the model.
        """
        from fairflare.studies.study import sites_table

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
        inputs: Paths | Sequence[Paths],
        *,
        site: str = "",
        which: str = "",
        plain: bool = False,
        out: Paths | None = None,
    ) -> pandas.DataFrame:
        """The model on new images or the rows of a table, as ``fairflare predict`` does it (docs/using-a-model.md).

        Args:
            inputs: files, a folder, or one table.
            site: whose model, scaling and thresholds are used; empty: the shared model alone.
            which: "final" or "best".
            plain: neither recalibration nor thresholds.
            out: keeps the results in this new folder, which masks need.

        Returns:
            A row per case; ``attrs["unlike"]`` says what is unlike the training.

        Raises:
            UserError: something cannot be read, or masks have nowhere to go.
        """
        import pandas

        from fairflare.inference.atomic_output import whole_folder
        from fairflare.inference.loaded_run import open_run
        from fairflare.inference.predict import predict

        named = [Path(one) for one in ([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)]
        with as_before(self._named), tempfile.TemporaryDirectory(prefix="fairflare_") as scratch:
            opened = open_run(self._finished, site, which=which, plain=plain)
            if out is None and opened.task.kind.has_masks:
                raise UserError("predict: masks are files; expected out=FOLDER")
            with (
                contextlib.nullcontext(Path(scratch))
                if out is None
                else whole_folder(Path(out), "predictions", force=False) as folder
            ):
                found = predict(opened, named, folder)
        made = pandas.DataFrame(found.rows, columns=found.header)
        made.attrs["unlike"] = list(found.unlike)
        return made

    def join(
        self,
        *others: Federation,
        folds: int = 5,
        repeats: int = 3,
        no_harm: float = 0.002,
        new_size: int = 100,
        out: Paths | None = None,
        workers: int | None = 1,
        force: bool = False,
        progress: bool = True,
    ) -> Joined:
        """Whether each hospital gains by this federation or one of ``others``, see ``fairflare join`` (docs/join.md).

        Args:
            others: further candidates, on the same task and data.
            folds: K; every patient is tested by models of the other K - 1.
            repeats: deals of folds.
            no_harm: what a mix of models may lose with probability .05 at most; 0: strict.
            new_size: patients of a hospital that is not in yet.
            out: the folder, whose finished runs are reused; by default one below ``runs``.
            workers: processes that compute side by side.
            force: makes all runs again.
            progress: shows how far they are on stderr.

        Raises:
            UserError: methods of one name, or of different data; a task that cannot be asked.
        """
        from fairflare.studies.join import asked, measure_join
        from fairflare.studies.joined import Joined

        question = asked([one.config for one in (self, *others)], folds, repeats, no_harm, new_size)
        folder = Path(out) if out is not None else Path(f"{default_folder(self.config)}-join")
        with as_before(self._named), contextlib.nullcontext() if progress else display.silent():
            found = measure_join(question, folder, force=force, workers=workers)
        return Joined(folder, found)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The final model's entries, on the CPU."""
        found: dict[str, torch.Tensor] = read_tensors(self._finished / MODEL)
        return found

    @property
    def model_sha256(self) -> str:
        """The final model's hash, as the audit log has it: equal hashes are equal bits."""
        return model_hash(self.state_dict())

    def __repr__(self) -> str:
        return f"<Federation: {title(self.config)}; {self.folder or 'not run'}>"


def join(methods: str | Sequence[str], task: str | None = None, **options: Any) -> Joined:
    """Whether each hospital gains by joining, and with which method's model: ``fairflare join`` from Python.

    Args:
        methods: ids of candidates.
        task: of two classes; None: your own data in ``datalists``.
        options: those of ``Federation`` for all methods, and those of ``Federation.join``.
    """
    names = [methods] if isinstance(methods, str) else list(methods)
    expected("join", bool(names), "methods", names)
    how = {key: options.pop(key) for key in JOIN_OPTIONS if key in options}
    first, *others = (Federation(name, task, **options) for name in names)
    return first.join(*others, **how)


JOIN_OPTIONS = ("folds", "repeats", "no_harm", "new_size", "out", "workers", "force", "progress")


def _command(kept: list[dict[str, Any]]) -> click.Command:
    """``fairflare run`` but that it keeps what it was told."""

    @click.command("run", cls=RunCommand)
    @config_options
    @run_options
    @threads_option
    @workers_option
    @cache_option
    @out_option
    def keep(**found: Any) -> None:
        kept.append({**found, "cache": os.environ.get(CACHE)})

    return keep


def _arguments(given: Mapping[str, Any]) -> list[str]:
    """What was given at all, as the command line has it."""
    found = {key: _plain(value) for key, value in given.items()}
    told = {key: value for key, value in found.items() if value is not None and value != []}
    return as_arguments(_command([]), told, "Federation", Path())


def _plain(value: Any) -> Any:
    """``value`` with paths as text."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
