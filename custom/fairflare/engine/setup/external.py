# SPDX-License-Identifier: Apache-2.0
"""The configuration under which a finished run's model is evaluated at sites that did not train it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fairflare.data.grouping import LABEL, NONE
from fairflare.engine.choices import NO_CHOICE
from fairflare.engine.setup.config import RunConfig, checked_config, make_config
from fairflare.engine.setup.parts import without_weights
from fairflare.engine.setup.tasks import known
from fairflare.tasks.base import Task
from fairflare.tasks.kinds.own import OwnData

METHOD = "fedavg"
"""Which method trained the model does not matter any more: nothing is trained, and the model is one for all."""
ACCEPTED = ["outsized"]
"""How many cases a site has weighs nothing here."""


def evaluation_of(
    config: RunConfig,
    task: Task,
    sites: Sequence[str],
    *,
    datalists: str = "",
    group_by: str = "",
    min_count: int | None = None,
    init_from: str = "",
) -> RunConfig:
    """What server and sites are told: the run's task and inputs, one exchange, everything labelled for testing.

    Args:
        config: of the run that has made the model.
        task: of the same.
        sites: names of those that evaluate it; ignored by a task that brings its data, whose sites they are.
        datalists: a folder with the lists of all of them on this machine; empty: each has its own.
        group_by: the groups of patients; empty: by what the run knows of them beside the label.
        min_count: the fewest patients whose numbers leave; None: the run's.
        init_from: SHA-256 of the model's tensors; empty: it is loaded by other means.

    Raises:
        UserError: the task has no such groups, or the sites' names cannot be any.
    """
    options = without_weights(config.options)
    own = issubclass(known(config.task), OwnData)
    if own:
        options |= {"datalists": datalists, "site_names": ",".join(sites)}
    names = {"site_names": ",".join(sites)} if own else {}
    base = make_config(METHOD, f"{config.task}:{config.preset}", values={f"task.{k}": v for k, v in names.items()})
    return checked_config(
        dataclasses.replace(
            base,
            options=options,
            training={**config.training, "rounds": 1},
            seed=config.seed,
            threads=config.threads,
            group_by=group_by or patients_by(config, task),
            min_count=config.min_count if min_count is None else min_count,
            min_sites=1,
            task_timeout=config.task_timeout,
            threshold=config.threshold,
            accept=ACCEPTED,
            code=config.code,
            init_from=init_from,
            solo=False,
            best_by=NO_CHOICE,
            best_weight=0.5,
            headline="final",
            evaluation=True,
        )
    )


def patients_by(config: RunConfig, task: Task) -> str:
    """The attributes that the run groups by, without the label; where it names none, all that the task has."""
    named = [key.strip() for key in config.group_by.split("+")]
    kept = [key for key in named if key not in (LABEL, NONE)] or list(task.attributes)
    return "+".join(kept) or NONE
