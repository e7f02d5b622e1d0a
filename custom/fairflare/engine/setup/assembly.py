# SPDX-License-Identifier: Apache-2.0
"""Builds a federation's server from a ``RunConfig``; every transport starts here, so they cannot differ."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from fairflare.core import registry
from fairflare.core.execution import default_device, placed
from fairflare.core.manifest import versions
from fairflare.core.metric import described, finite
from fairflare.core.schema import Transport
from fairflare.core.types import PERSONAL, StateDict
from fairflare.engine.audit import is_begun
from fairflare.engine.best import Choice
from fairflare.engine.clinical import View
from fairflare.engine.combination import Aggregation, Plain
from fairflare.engine.evaluation import predict
from fairflare.engine.exchanges.base import AtServer, named
from fairflare.engine.exchanges.clinical import view_of
from fairflare.engine.files import AUDIT, CONFIG, MOST_JSON, json_text, read_bytes, read_json, save_text
from fairflare.engine.gate import Gate, SumsCheck
from fairflare.engine.loop import LAST, Federation, Observer, Score
from fairflare.engine.setup import tasks
from fairflare.engine.setup.at_site import build_site, draws, leaves, of_run
from fairflare.engine.setup.config import RUN_KEYS, RunConfig, composed_title, site_of_client
from fairflare.engine.setup.config_checks import refuse_pooling
from fairflare.engine.setup.parts import Parts, is_scored
from fairflare.engine.setup.tuning import sizes
from fairflare.engine.setup.weights import keep
from fairflare.engine.straggler_policy import EarlyEnd
from fairflare.networks.builtin import normalisation
from fairflare.privacy.identity import Credentials
from fairflare.privacy.schemes import LEAST, NONE
from fairflare.tasks.base import TestSet

__all__ = ["CONFIG", "Credentials", "build_federation", "build_site", "leaves", "save_config", "site_names"]


def build_federation(
    config: RunConfig,
    parts: Parts,
    transport: Transport,
    folder: Path,
    env: str,
    observers: Sequence[Observer] = (),
    credentials: Credentials | None = None,
) -> Federation:
    """The server's side, writing to ``folder``, where ``config.json`` is put first; UserError for what it refuses."""
    if env != "local":
        refuse_pooling(parts.selector, f"a FLARE job ({env})")
    # The first line of a log, and of each of its segments, holds the hash of the config.json beside it.
    begun = (folder / AUDIT).is_file() and is_begun(folder / AUDIT)
    if not begun:
        save_config(config, parts, folder, env)
    configure: Callable[[], object] = dict
    said = header(config, folder)
    if begun and RunConfig.from_json(read_json(folder / CONFIG)).sha256() != config.sha256():
        text = json_text(_described(config, parts, env))
        said["config_json_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        configure = partial(save_text, folder / CONFIG, text)
    view, task, best = view_of(of_run(config, parts)), parts.task, parts.task.metric(parts.task.headline)
    by = config.best_by, config.best_weight
    scored = config.training.rounds if config.score_rounds == "all" else LAST if task.table_sets() else 1
    threads = getattr(transport, "processes", 1)  # on as many cores as the sites, which wait meanwhile
    return Federation(
        rule=parts.rule,
        aggregation=server_part(config, parts, credentials or Credentials()),
        gate=_gate(config, parts, view),
        transport=transport,
        rounds=0 if config.evaluation else config.training.rounds,
        horizon=config.training.horizon or 0,
        lr=config.training.lr,
        min_sites=config.min_sites,
        named=[name for name in site_names(config) if name != config.leave_out],
        require=config.require,
        folder=folder,
        header=said,
        configure=configure,
        observers=observers,
        groups=parts.grouping.names,
        leave_out=config.leave_out,
        accept=config.accept,
        score=scorer(parts, config.training.batch_size, threads) if is_scored(parts) else None,
        scored_rounds=scored,
        selector=parts.selector,
        server_optimizer=parts.server_optimizer,
        trainer=parts.trainer,
        seed=config.seed,
        early_end=EarlyEnd(config.min_responses, config.grace),
        exchanges=at_server(config, parts, view),
        choice=Choice(*by, best.name, best.higher_is_better, config.min_sites, config.headline == "best"),
    )


def header(config: RunConfig, folder: Path) -> dict[str, Any]:
    """What the log's first line says of the run; "site_privacy" is the budget of each hospital's updates over it."""
    budget = {name: getattr(config, f"site_{name}") for name in ("epsilon", "delta", "clip", "colluders")}
    return {
        "method": config.method,
        "task": f"{config.task}:{config.preset}",
        "seed": config.seed,
        "config_sha256": config.sha256(),
        "lineage": config.lineage(),
        "config_json_sha256": hashlib.sha256(read_bytes(folder / CONFIG, MOST_JSON)).hexdigest(),
        "versions": versions(),
        **({"site_privacy": budget} if config.site_epsilon else {}),
    }


def _gate(config: RunConfig, parts: Parts, view: View) -> Gate:
    """The check of what sites answer, by what the method's parts declare."""
    numbers, trainer, family = parts.scalars(anchored=False), parts.trainer, parts.task.kind.family or "bernoulli"
    exact: Any = trainer if trainer.sums_only and trainer.model == "regression" else None
    return Gate(
        trainable=parts.trainable,
        scalars=numbers,
        wanted=tuple(name for name in parts.rule.wanted if name in {number.name for number in numbers}),
        tensors=parts.sent_tensors,
        anchored=parts.scalars(anchored=True),
        max_norm_ratio=config.max_norm_ratio,
        metrics=parts.metrics,
        personal=parts.personal,
        personal_results=parts.has_personal,
        view=view,
        sums=SumsCheck(family, exact.intercept) if exact else None,
    )


def save_config(config: RunConfig, parts: Parts, folder: Path, env: str) -> None:
    """Write ``config.json``: the run's configuration and what a reader should know beside it; first given weights."""
    if parts.origin:  # a server may have no body
        keep(config.init_from, folder)
    save_text(folder / CONFIG, json_text(_described(config, parts, env)))


def _described(config: RunConfig, parts: Parts, env: str) -> dict[str, Any]:
    method, task = registry.get_method(config.method), parts.task
    script = f", script {str(config.options['script']).rpartition('.')[0]}.py" if task.by_script else ""
    return {
        **config.to_json(),
        "about": about(config, parts),
        "title": composed_title(method, config.parts) + script,
        "paper": str(method.paper),
        "probes": list(registry.probes_of(method, config.trainer)),
        "normalisation": normalisation(parts.network),
        "env": env,
        "versions": versions(),
    }


def site_names(config: RunConfig) -> list[str]:
    """The run's sites, in the task's order."""
    return list(site_of_client(config, tasks.load(config.task, config.preset, **config.options)))


def server_part(config: RunConfig, parts: Parts, own: Credentials) -> Aggregation:
    """How the server combines answers: as they are, or sealed with secure sums; UserError where a rule has none."""
    if config.secure_sum == NONE:
        return Plain()
    from fairflare.engine.exchanges.sums import summed
    from fairflare.engine.server_sums import ServerSums
    from fairflare.privacy.secure_sums import combiner, sealed_sizes
    from fairflare.privacy.sum_keys import verified

    context = config.sha256()
    return ServerSums(
        pass_on=combiner(config.secure_sum, own),
        vouched=lambda site, said: verified(context, site, said, own.identity),
        sizes=sealed_sizes(config.secure_sum, summed(parts.rule).n_terms),
        least=max(config.min_sites, LEAST),
        sites=len(parts.task.sites()) - bool(config.leave_out),
        draws=draws(parts),
    )


def at_server(config: RunConfig, parts: Parts, view: View) -> list[AtServer]:
    """The server's halves of what is asked after the last round; ``view``: what sites say of calibration."""
    run, found = of_run(config, parts), list[AtServer]()
    for name, exchange in named(config, parts.task).items():
        more = {"view": view} if name == "after" else {}
        if (half := exchange.at_server(run, **more)) is not None:
            found.append(half)
    return found


SHARED = "shared"


def about(config: RunConfig, parts: Parts) -> dict[str, Any]:
    """The key "about" of ``config.json``, as JSON values: the task's own words, and how its numbers are to be read.

    Returns:
        run_settings: all, those too that a file leaves out; trained: of a network with a frozen body, how many numbers
        train and how many it has; counted: "personal" where the results are those of the sites' own models, else
        absent; used: where sites are shown models of their own, "personal" if these are the ones that they use, else
        "shared"; features and family (where a trainer sends sums over patients): a table's, in the network's order, and
        what its targets are taken for; table_sets: "clean" and "corrupted" -> the shared test sets of the papers'
        tables; clinical or curves: see ``View.described``; group_metric: what a group's value is; numbers: what sites
        report beside the update.
    """
    task, view = parts.task, view_of(of_run(config, parts))
    # Every format that was written before knows what accuracy is.
    shown = dict.fromkeys((*parts.metrics, task.headline, task.kind.score or "accuracy", "accuracy"))
    described_sites = zip(config.clients or task.sites(), task.sites().values(), strict=True)
    domains = dict(zip(config.clients or task.domains(), task.domains().values(), strict=False))
    inputs = task.table_inputs() if parts.trainer.sums_only else None
    features = [feature.words for feature in (*inputs.numbers, *inputs.plain)] if inputs else []
    own: dict[str, Any] = {"counted": PERSONAL} if parts.counts_own else {}
    if config.tune != "all":
        own["trained"] = dict(zip(("numbers", "of"), sizes(parts.network), strict=True))
    if parts.has_personal or parts.rule.own_models:
        own["used"] = PERSONAL if parts.has_personal or parts.counts_own else SHARED
    return {
        **own,
        "title": task.title,
        "real": task.real,
        "simulated": task.simulated,
        "drawn": list(task.drawn()),
        "run_settings": {key: getattr(config, key) for key in RUN_KEYS},
        "classes": list(task.classes),
        "headline": task.headline,
        "primary": task.primary,
        "sites": dict(described_sites),
        **({"domains": domains} if domains else {}),
        "table_sets": task.table_sets(),
        "groups": list(parts.grouping.names),
        **view.described(task.classes),
        "group_metric": task.kind.score or task.headline,
        "metrics": described(map(task.metric, shown), len(task.classes)),
        **({"features": features, "family": task.kind.family} if features else {}),
        "numbers": {one.name: one.meaning for when in (False, True) for one in parts.scalars(anchored=when)},
    }


def scorer(parts: Parts, batch_size: int, at_once: int = 1) -> Score:
    """Scores models on the task's shared test sets, which are built at the first call and kept.

    A model that is not the final one only on those of the papers' tables, which are of the last rounds' mean.

    Args:
        at_once: on so many test sets at once, each in a thread with a network of its own; the scores are the same bits.
    """
    # Without the initial model, which nobody needs once the run has begun.
    task, shared = parts.task, parts.trainer.shared_batches
    networks, found = [parts.network], list[TestSet]()
    tabled = set(task.table_sets().values())

    def score(model: StateDict, final: bool) -> dict[str, Any]:
        found.extend(() if found else task.test_sets())
        device, wanted = default_device(), [test for test in found if final or test.name in tabled]
        while len(networks) < min(at_once, len(wanted)):
            networks.append(copy.deepcopy(networks[0]))
        for network in networks:
            placed(network, device).load_state_dict(model)  # as sites have it, so that scores are the same bits
        del model  # as large as the network

        def row(test: TestSet) -> dict[str, Any]:
            network = networks.pop()
            try:
                batches = shared(partial(test.batches, batch_size))
                metrics = finite(task.evaluate(*predict(network, batches, device, task.condense)[:2]))
            finally:
                networks.append(network)
            return {"corrupted": test.corrupted, "n": len(test.targets), "metrics": metrics}

        if len(networks) == 1:
            return {test.name: row(test) for test in wanted}
        with ThreadPoolExecutor(len(networks)) as pool:
            return dict(zip((test.name for test in wanted), pool.map(row, wanted), strict=True))

    return score
