# SPDX-License-Identifier: Apache-2.0
"""A finished run on an MLflow server: a run for the federation, with a child for each site.

By MLflow's REST interface (https://mlflow.org/docs/latest/api_reference/rest-api.html, version 2.0), so that no client
has to be installed. Nothing is sent that is not in ``report.json`` and ``report.html``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse

import requests

from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.files import read_json
from fairflare.report import REPORT

PAGE = "report.html"
MOST = 100
"""Parameters, tags and metrics of one request: fewer than MLflow's limits."""
LONGEST = 5000
"""Characters of a parameter's value; MLflow takes 6,000."""
TIMEOUT = 60
NAMES = str.maketrans({one: "_" for one in "[](){}<>|&%$#@!?+=,;:*\"'`^~\\"})
"""Characters of a site's or a class's name that MLflow takes in no name."""


class Server:
    """An MLflow server; RunFailed where it is not there or refuses."""

    def __init__(self, uri: str) -> None:
        if urlparse(uri).scheme not in ("http", "https"):
            raise UserError(f"--mlflow: expected http://HOST:PORT or https://..., got {uri}")
        self.uri, self._session = uri.rstrip("/"), requests.Session()
        user, password = (os.environ.get(f"MLFLOW_TRACKING_{key}") for key in ("USERNAME", "PASSWORD"))
        if user and password:
            self._session.auth = (user, password)
        if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
            self._session.headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        """The answer to a request."""
        try:
            answer = self._session.request(method, f"{self.uri}/api/2.0/{path}", timeout=TIMEOUT, **given)
        except requests.RequestException as error:
            raise RunFailed(f"MLflow {self.uri}: no answer ({type(error).__name__})") from None
        if answer.status_code == 404 and path.endswith("get-by-name"):
            return {}
        if not answer.ok:
            text = " ".join(answer.text.split())[:200]
            raise RunFailed(f"MLflow {self.uri}: {path.partition('?')[0]}: {answer.status_code} {text}")
        return dict(answer.json()) if answer.text.strip() else {}

    def experiment(self, name: str) -> str:
        """Its id; it is made where there is none."""
        found = self.ask("GET", "mlflow/experiments/get-by-name", params={"experiment_name": name})
        if found:
            return str(found["experiment"]["experiment_id"])
        return str(self.ask("POST", "mlflow/experiments/create", json={"name": name})["experiment_id"])

    def log(self, run: str, params: Mapping[str, Any], metrics: list[tuple[str, float, int]]) -> None:
        """Parameters, and metrics as (name, value, step)."""
        now = int(time.time() * 1000)
        values = [{"key": _name(key), "value": str(value)[:LONGEST]} for key, value in params.items()]
        numbers = [{"key": _name(k), "value": float(v), "timestamp": now, "step": step} for k, v, step in metrics]
        for kind, rows in (("params", values), ("metrics", numbers)):
            for k in range(0, len(rows), MOST):
                self.ask("POST", "mlflow/runs/log-batch", json={"run_id": run, kind: rows[k : k + MOST]})

    def upload(self, run: Mapping[str, Any], path: Path) -> bool:
        """Whether the server keeps files itself, and has taken this one."""
        where = urlparse(run["info"]["artifact_uri"])
        if where.scheme != "mlflow-artifacts":
            return False
        self.ask(
            "PUT",
            f"mlflow-artifacts/artifacts/{quote(where.path.strip('/'))}/{quote(path.name)}",
            data=path.read_bytes(),
            headers={"Content-Type": "application/octet-stream"},
        )
        return True


def publish(folder: Path, uri: str, experiment: str) -> tuple[str, list[str]]:
    """Send the run in ``folder``; returns the id of the federation's run, and remarks.

    Raises:
        UserError: the folder has no report.
        RunFailed: the server is not there or refuses.
    """
    summary = read_json(folder / REPORT)["detail"]
    server = Server(uri)
    where = server.experiment(experiment)
    parent = _begun(server, where, folder.name, {"fairflare.method": summary["method"]["id"]})
    run = parent["info"]["run_id"]
    server.log(run, _parameters(summary), list(_federation(summary)))
    kept = [server.upload(parent, folder / name) for name in (PAGE, REPORT) if (folder / name).is_file()]
    for site in summary["sites"]:
        tags = {"mlflow.parentRunId": run, "fairflare.site": site["site"]}
        child = _begun(server, where, site["site"], tags)["info"]["run_id"]
        sizes = {key: site[key] for key in ("n_examples", "n_val", "n_test") if site.get(key) is not None}
        server.log(child, sizes, list(_site(summary, site)))
        _ended(server, child, summary["status"])
    _ended(server, run, summary["status"])
    return run, [] if all(kept) else [f"{PAGE} and {REPORT} stay here: the server keeps no files for its clients"]


def _begun(server: Server, experiment: str, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    rows = [{"key": key, "value": value} for key, value in {"mlflow.runName": name, **tags}.items()]
    given = {"experiment_id": experiment, "run_name": name, "start_time": int(time.time() * 1000), "tags": rows}
    return dict(server.ask("POST", "mlflow/runs/create", json=given)["run"])


def _ended(server: Server, run: str, status: str) -> None:
    state = "FINISHED" if status == "completed" else "FAILED"
    server.ask("POST", "mlflow/runs/update", json={"run_id": run, "status": state, "end_time": int(time.time() * 1000)})


def _parameters(summary: Mapping[str, Any]) -> dict[str, Any]:
    method, task = summary["method"], summary["task"]
    options = {f"task.{key}": value for key, value in task["options"].items() if value not in ("", None)}
    training = {f"train.{key}": value for key, value in summary["training"].items() if value is not None}
    parts = {key: method[key] for key in ("trainer", "selector", "server_optimizer", "after") if method.get(key)}
    about = {"method": method["id"], "task": f"{task['id']}:{task['preset']}", "seed": summary["seed"], **parts}
    about |= {"sites": len(summary["sites"]), "min_sites": summary["min_sites"], "secure_sum": summary["secure_sum"]}
    proof = {key: summary["provenance"][key] for key in ("config_sha256", "model_sha256", "chain_head")}
    return {**about, **method["settings"], **training, **options, **proof}


def _federation(summary: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Mean, worst and gap over the sites' tests, of the headline also their interval; by rounds on validation."""
    last, name = summary["rounds_done"], summary["headline"]
    for found in (*(summary.get("risks") or ()), {"metric": name, **summary["fairness"]}):
        if found["metric"]:
            yield from _over_sites(found, str(found["metric"]), last)
    for end in ("low", "high"):
        if (value := (summary["fairness"].get("ci") or {}).get(end)) is not None:
            yield f"mean_{name}_{end}", value, last
    for one in summary["rounds"]:
        values = [value for value in one.get("metric", {}).values() if value is not None]
        if values:
            yield f"val_mean_{name}", one["mean"], one["round"]
            yield f"val_worst_{name}", one["worst"]["value"], one["round"]
            yield f"val_gap_{name}", max(values) - min(values), one["round"]


def _over_sites(found: Mapping[str, Any], name: str, step: int) -> Iterator[tuple[str, float, int]]:
    worst = (found.get("worst") or {}).get("value")
    for key, value in (("mean", found.get("mean")), ("worst", worst), ("gap", found.get("gap"))):
        if value is not None:
            yield f"{key}_{name}", value, step


def _site(summary: Mapping[str, Any], site: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """A site's final scores with their intervals, and its weights and validation scores by rounds."""
    last, name = summary["rounds_done"], summary["headline"]
    for split in ("val", "test"):
        yield from ((f"{split}_{key}", value, last) for key, value in (site.get(split) or {}).items())
    for key, ends in (site.get("intervals") or {}).items():
        pair = [ends.get("low"), ends.get("high")] if isinstance(ends, Mapping) else list(ends)[:2]
        yield from ((f"test_{key}_{end}", one, last) for end, one in zip(("low", "high"), pair) if one is not None)
    for one in summary["rounds"]:
        for key, values in (("weight", one.get("weights")), (f"round_{name}", one.get("metric"))):
            if (value := (values or {}).get(site["site"])) is not None:
                yield key, value, one["round"]


def _name(key: str) -> str:
    return key.translate(NAMES)[:250]
