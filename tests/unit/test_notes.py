# SPDX-License-Identifier: Apache-2.0
"""Notes: what a rule declares, what its log says of it, and what TensorBoard draws without knowing the rule."""

import dataclasses
import math
from typing import ClassVar

import pytest

from fairflare.aggregators.fedavg import FedAvg
from fairflare.aggregators.fedheal import FedHEAL
from fairflare.core import registry
from fairflare.core.notes import Note, numbers
from fairflare.core.registry import get_method
from fairflare.engine.audit import verify
from fairflare.report.tensorboard import TensorBoard
from fairflare.testing.laws import notes_are_declared
from helpers import initial_model, make_federation


@dataclasses.dataclass(frozen=True)
class Noting(FedAvg):
    """Says how many sites took part, and a number of each."""

    notes: ClassVar[tuple[Note, ...]] = (
        Note("n_sites", "Sites", per="round"),
        Note("examples", "Examples", "examples", "site"),
        Note("grid", "Grid", per="layer", chart="map"),
    )

    def aggregate(self, model, replies, state, info):
        examples = {r.site: r.n_examples for r in replies}
        found = {"n_sites": len(replies), "examples": examples, "grid": {"layer": dict.fromkeys(examples, 1.0)}}
        return dataclasses.replace(super().aggregate(model, replies, state, info), notes=found)


@pytest.mark.parametrize(
    "bad", [{"name": "two words"}, {"name": "weights"}, {"name": "x", "per": "patient"}, {"name": "x", "chart": "pie"}]
)
def test_a_note_that_cannot_be_drawn_is_refused(bad):
    with pytest.raises(ValueError, match=list(bad)[-1]):
        Note(**{"label": "Label", **bad})


@pytest.mark.parametrize(
    "per, good, bad",
    [
        ("round", 2, {"a": 1.0}),
        ("site", {"a": 1.0}, {"a": math.nan}),
        ("group", {}, 3.0),
        ("layer", {"conv": {"a": 0.5}}, {"conv": 0.5}),
        ("cell", {"a": {"female": 0}}, {"a": {"female": True}}),
    ],
)
def test_a_value_has_the_declared_shape(per, good, bad):
    note = Note("x", "X", per=per)
    assert note.misfit(good) == "" and note.misfit(bad).startswith("x")


def test_only_what_fits_is_drawn():
    assert numbers(Note("x", "X").to_json(), {"a": 1, "b": math.inf, "c": "text"}) == {"a": 1.0}
    assert numbers(Note("x", "X", per="round").to_json(), 2.5) == {"": 2.5}
    assert numbers(Note("x", "X", per="layer").to_json(), {"conv": {"a": 1.0}}) == {}
    assert numbers({"name": "x"}, {"a": 1.0}) == {}


def test_the_log_begins_with_the_declarations(tmp_path):
    make_federation(tmp_path, rule=FedHEAL(), rounds=1).run(initial_model())
    entries = verify(tmp_path / "audit.jsonl")
    declared = {note["name"]: note for note in entries[0]["declared_notes"]}
    assert declared["kept_share"]["unit"] == "fraction" and declared["kept_share"]["per"] == "site"
    assert set(entries[1]["notes"]) <= set(declared)


def test_tensorboard_draws_any_rules_notes(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    board = TensorBoard(tmp_path, [note.to_json() for note in Noting.notes])
    make_federation(tmp_path, rule=Noting(), rounds=1, observers=[board]).run(initial_model())
    (file,) = (tmp_path / "tb_events").iterdir()
    version, *rounds = EventFileLoader(str(file)).Load()
    assert version.file_version and [(event.step, len(event.summary.value) > 10) for event in rounds] == [(1, True)]
    board.close()
    events = EventAccumulator(str(tmp_path / "tb_events")).Reload()
    assert events.Scalars("note_n_sites")[0].value == 3
    assert [events.Scalars(f"note_examples/site-{k}")[0].value for k in (1, 2, 3)] == [24] * 3
    assert not [tag for tag in events.Tags()["scalars"] if tag.startswith("note_grid")]


def test_the_law_finds_an_undeclared_note(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Secretive(Noting):
        notes: ClassVar[tuple[Note, ...]] = Noting.notes[:1]

    entry = dataclasses.replace(get_method("fedavg"), rule="noting")
    monkeypatch.setitem(registry._parts["rule"], "noting", Noting)
    notes_are_declared(entry)
    monkeypatch.setitem(registry._parts["rule"], "noting", Secretive)
    with pytest.raises(AssertionError, match="undeclared"):
        notes_are_declared(entry)
