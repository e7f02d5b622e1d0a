# SPDX-License-Identifier: Apache-2.0
"""A site of an exact regression that sends what no patients can have is left out, with one line that says why."""

import dataclasses

import pytest
import torch

from cases import each
from fairflare.engine.audit import verify
from fairflare.engine.gate import SumsCheck
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_federation, build_site, site_names
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts

BAD = "VA"


def changed(**change):
    """An answer whose sums are changed by functions of what they are, update and sum alike before the first round."""
    return lambda update: {**update, **{key: make(update[key].clone()) for key, make in change.items()}}


def unequal(matrix):
    matrix[0, 1] += 0.1
    return matrix


def indefinite(matrix):
    return matrix - 2 * torch.diag(matrix.diagonal())


def scaled(update):
    """A score that is five times as large, and all that follows from it: no site's norm is ten times the others'."""
    return {**update, "score": 5 * update["score"], "between": 25 * update["between"]}


FAULTS = [
    (changed(information=unequal), "information: expected a symmetric matrix"),
    (changed(information=indefinite), "information: expected no negative eigenvalue"),
    (changed(score=lambda t: 1.2 * t), "between: expected the outer product of the score"),
    (scaled, "score, information: expected at most 1 and 1/4|score: expected at most the root"),
    (changed(value=lambda t: -t), "value: expected a log-likelihood of at most 0"),
    (changed(last=lambda t: t - 0.5), "last: expected no change"),
    (changed(own=lambda t: 3 * t), "own: expected at most one fit"),
]


class Lying(InProcess):
    """In the first round ``BAD`` answers with other sums."""

    def __init__(self, sites, lie):
        super().__init__(sites)
        self.lie = lie

    def exchange(self, instructions):
        for answer in super().exchange(instructions):
            if answer.site == BAD and next(iter(instructions.values())).task == "train" and answer.round == 1:
                answer = dataclasses.replace(answer, update=self.lie(dict(answer.update)))
            yield answer


def told(lie, folder, rounds):
    """The log's rounds."""
    folder.mkdir(exist_ok=True)
    config = make_config("glm", "heart", rounds=rounds, values={"min_sites": 3})
    parts = build_parts(config)
    sites = {name: build_site(config, parts, name) for name in site_names(config)}
    initial = {key: value.clone() for key, value in parts.model.items()}
    build_federation(config, parts, Lying(sites, lie), folder, "local").run(initial)
    return [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == "round"]


@each("lie, words", FAULTS)
def test_sums_that_no_patients_have_are_refused(lie, words, tmp_path):
    first, second = told(lie, tmp_path, 2)
    assert list(first["rejected"]) == [BAD] and first["rejected"][BAD]["code"] == "sums"
    detail = first["rejected"][BAD]["detail"]
    assert any(detail.startswith(one) for one in words.split("|")) and "\n" not in detail
    assert not second["rejected"]


def test_a_huge_score_or_a_moved_coefficient_is_refused_by_its_size_before_that(tmp_path):
    lies = (changed(score=lambda t: 1e9 * t, between=lambda t: 1e18 * t), changed(weight=lambda t: t + 1))
    for number, lie in enumerate(lies):
        (only,) = told(lie, tmp_path / str(number), 1)
        assert {site: one["code"] for site, one in only["rejected"].items()} == {BAD: "norm"}


def moved(model, nothing):
    return {**nothing, "weight": torch.full_like(model["weight"], 1e-3)}


@pytest.mark.parametrize("examples", [None, 100])
def test_a_total_is_held_against_what_sums_of_all_sites_can_be(examples):
    """Under secure sums the server sees the total alone."""
    model = build_parts(make_config("glm", "heart")).model
    nothing = {key: torch.zeros_like(value) for key, value in model.items()}
    check = SumsCheck("bernoulli", "shared")
    assert check.doubt(model, nothing, examples) == ""
    assert check.doubt(model, moved(model, nothing), examples) == "weight: expected no change, since a site sends sums"
    worse = {**nothing, "information": -torch.eye(len(model["score"]), dtype=torch.float64)}
    assert "negative eigenvalue" in check.doubt(model, worse, examples)
    assert SumsCheck("bernoulli", "random").doubt(model, worse, examples) == ""  # Louis' information can be indefinite


def test_a_hospital_of_many_more_patients_is_not_refused_by_what_grows_with_them(tmp_path):
    """A fit of its own whose precision is ten thousand times the others', as of ten thousand times their patients."""
    many = torch.tensor([1.0, 1e4, 1e4, 1e4, 1e8], dtype=torch.float64)[:, None]
    (only,) = told(changed(own=lambda t: many * t), tmp_path, 1)
    assert not only["rejected"] and BAD in only["accepted"]
