# SPDX-License-Identifier: Apache-2.0
"""Settings have owners: full names, bare ones while they are unique, shared quantities, and the format on disk."""

import dataclasses
import json
import re
from functools import partial

import pytest

from cases import each
from fairflare.cli.options import own_names
from fairflare.core import plugins, registry
from fairflare.core.errors import UserError
from fairflare.core.settings import Owners, flat, nested, owned
from fairflare.core.types import Paper
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.engine.setup.parts import build_parts
from fairflare.studies.describe import method_rows, part_rows
from fairflare.studies.labels import on_grid
from fairflare.studies.run_file import beneath
from fairflare.studies.study import arms
from fairflare.trainers.base import PlainTrainer

TASK = "support2"


@pytest.fixture
def alpha(monkeypatch):
    """A trainer with a parameter that table tasks have too, and a method that measures sharpness whatever trains."""
    registry.methods()
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setattr(registry, "_parts", {kind: dict(table) for kind, table in registry._parts.items()})

    @registry.trainer("alpha")
    @dataclasses.dataclass(frozen=True)
    class Alpha(PlainTrainer):
        alpha: float = 0.25

    paper = Paper("A", "t", "v", 2026, "https://example.org")
    registry.method("watched", title="W", summary="s", rule="fedavg", probes=("sharpness",), paper=paper)
    registry.methods()
    yield
    registry._whole -= {"watched", "watched-sam"}
    plugins._done.clear()


def config(method="fedavg", task=TASK, **values):
    return make_config(method, task, values=values)


def test_a_trainers_alpha_is_not_the_dirichlet_alpha(alpha):
    plain = config(task="support2:dirichlet")
    found = config(task="support2:dirichlet", trainer="alpha", **{"trainer.alpha": "0.75"})
    assert build_parts(found).trainer.alpha == 0.75 and found.options == plain.options
    other = config(task="support2:dirichlet", trainer="alpha", **{"task.alpha": "0.75"})
    assert build_parts(other).trainer.alpha == 0.25 and other.options["alpha"] == 0.75


def test_a_bare_name_of_two_owners_is_refused_with_both(alpha):
    with pytest.raises(UserError, match=r"^alpha: belongs to several; expected one of trainer.alpha, task.alpha$"):
        config(task="support2:dirichlet", trainer="alpha", alpha="0.75")
    assert config(task="support2:dirichlet", alpha="0.75").options["alpha"] == 0.75


def test_sam_keeps_its_radius_beside_a_sharpness_probe(alpha):
    """The probe's default is not the trainer's."""
    parts = default_parts("watched")
    assert parts.probes[0].rho_max == 0.1
    found = config("watched", trainer="sam")
    assert found.settings["trainer.rho_max"] == 0.05 and found.settings["probe.sharpness.rho_max"] == 0.1
    assert build_parts(found).trainer.rho_max == 0.05
    with pytest.raises(UserError, match="^rho_max: belongs to several; expected one of trainer.rho_max, probe.sharpn"):
        config("watched", trainer="sam", rho_max="0.3")


def test_fedism_plus_with_sam_shares_its_radius():
    parts = build_parts(config("fedism-plus", trainer="sam", rho_max="0.3"))
    assert parts.trainer.rho_max == parts.probes[0].rho_max == 0.3
    parts = build_parts(config("fedism-plus", trainer="sam"))
    assert parts.trainer.rho_max == parts.probes[0].rho_max == 0.1 and parts.trainer.rho_tau == 0.5
    parts = build_parts(config("fedism-plus", **{"trainer.rho_max": "0.3"}))
    assert (parts.trainer.rho_max, parts.probes[0].rho_max) == (0.3, 0.1)


def test_a_shared_quantity_without_a_value_is_that_of_the_first_part(alpha):
    paper = Paper("A", "t", "v", 2026, "https://example.org")
    both = {"rho_max": ("trainer.rho_max", "probe.sharpness.rho_max")}
    kinds = {"rule": "fedavg", "trainer": "sam", "probes": ("sharpness",)}
    registry.method("watched-sam", title="W", summary="s", **kinds, paper=paper, shared=both)
    found = config("watched-sam").settings
    assert found["trainer.rho_max"] == found["probe.sharpness.rho_max"] == 0.05
    assert default_parts("watched-sam", {"rho_max": 0.3}).probes[0].rho_max == 0.3
    assert found["probe.sharpness.rho_tau"] == 0.5 and found["trainer.rho_tau"] == 0.0


def test_a_presets_bare_name_stands_for_every_part_that_has_it(alpha):
    owners = Owners(registry.owners(registry.get_method("watched"), trainer="sam"))
    found = owners.spread({"rho_max": 0.02, "trainer.rho_tau": 1.0, "q": 3})
    assert {full: given.value for full, given in found.items()} == {
        "trainer.rho_max": 0.02,
        "probe.sharpness.rho_max": 0.02,
        "trainer.rho_tau": 1.0,
    }


@pytest.mark.parametrize(
    "shared, text",
    [
        ({"r": ("trainer.nosuch",)}, "shared 'r': unknown key 'trainer.nosuch'"),
        ({"r": "trainer.rho_max"}, "shared 'r': expected a name, and a tuple"),
        ({"": ("trainer.rho_max",)}, "shared '': expected a name"),
        ({3: ("trainer.rho_max",)}, "shared 3: expected a name"),
    ],
)
def test_a_wrong_shared_quantity_is_one_line(alpha, shared, text):
    paper = Paper("A", "t", "v", 2026, "https://example.org")
    registry.method("watched-sam", title="W", summary="s", rule="fedavg", trainer="sam", paper=paper, shared=shared)
    with pytest.raises(UserError, match=f"method 'watched-sam': {text}"):
        registry.methods()


def test_commands_without_parts_take_a_tasks_full_names():
    assert own_names({"task.size": "3", "labels": "2", "rule.q": 1}, "task") == {
        "size": "3",
        "labels": "2",
        "rule.q": 1,
    }
    with pytest.raises(UserError, match="--set: 'size' is given twice"):
        own_names({"task.size": "3", "size": "4"}, "task")


def test_a_shared_name_works_where_only_some_have_it():
    found = config("fedism-plus", trainer="sgd", rho_max="0.3")
    assert found.settings["probe.sharpness.rho_max"] == 0.3 and "trainer.rho_max" not in found.settings


@each("method", registry.methods())
def test_every_setting_of_the_packages_methods_has_a_short_name(method):
    entry = registry.get_method(method)
    assert not [name for name in Owners(registry.owners(entry), entry.shared).names() if "." in name]


@each(
    "values, text",
    [
        ({"rule.qq": 1}, "unknown key 'rule.qq'; did you mean rule.q\\?$"),
        ({"nosuch.q": 1}, "unknown key 'nosuch.q'; known: .*weighting"),
        ({"probe.q": 1}, "unknown key 'probe.q'"),
        ({"rule.q": "two"}, "rule.q: expected a number, got 'two'"),
        ({"q": 1, "rule.q": 2}, "rule.q: is given twice, as q and as rule.q"),
        ({"rho_max": 1, "trainer.rho_max": 2}, "trainer.rho_max: is given twice, as rho_max and as trainer.rho_max"),
        ({"trainer": "sam", "run.trainer": "sgd"}, "run.trainer: is given twice"),
        ({"trainer": ""}, "unknown trainer ''"),
        ({"run.min_sites": 9}, "min_sites: expected at most the task's 4 sites, got 9"),
        ({"selector": "some"}, "unknown selector 'some'; known: all, list, pool, share"),
        ({"selector": "share", "share": "0"}, "share must be above 0"),
        ({"selector": "share", "select.share": "half"}, "select.share: expected a number, got 'half'"),
        ({"select.share": "0.5"}, "unknown key 'select.share'"),
        ({"selector": "list"}, "select.sites: expected names among .*, got none"),
        ({"selector": "list", "sites": "nowhere"}, "select.sites: expected names among .*, got 'nowhere'"),
        ({"server_optimizer": "lion"}, "unknown server optimizer 'lion'; known: adagrad, adam, momentum, none, yogi"),
        ({"server_optimizer": "adam", "lr": 1}, "lr: belongs to several; expected one of server.lr, train.lr"),
        ({"server_optimizer": "adam", "server.tau": 0}, "tau must be > 0"),
    ],
)
def test_mistakes_are_one_line(values, text):
    with pytest.raises(UserError, match=f"^{text}"):
        config("fedism", **values)


def test_full_names_reach_every_owner():
    found = make_config(
        "fedism",
        "support2:dirichlet",
        values={
            "rule.q": "3",
            "trainer.gsam_alpha": "0.2",
            "probe.sharpness.probe_batch": "32",
            "train.lr": "0.01",
            "train.rounds": "7",
            "task.alpha": "0.4",
            "run.min_sites": "3",
            "run.trainer": "gsam",
            "selector": "share",
            "select.share": "0.75",
            "server_optimizer": "yogi",
            "server.lr": "0.5",
        },
    )
    parts = build_parts(found)
    assert (parts.rule.rule.q, parts.trainer.gsam_alpha, parts.probes[0].probe_batch) == (3, 0.2, 32)
    assert (parts.selector.share, parts.server_optimizer.lr, parts.server_optimizer.beta2) == (0.75, 0.5, 0.99)
    assert (found.training.lr, found.training.rounds, found.options["alpha"], found.min_sites) == (0.01, 7, 0.4, 3)
    assert owned(found.settings, "server") == {"lr": 0.5, "beta1": 0.9, "tau": 1e-3, "v_start": "tau", "beta2": 0.99}


def test_the_quorum_follows_the_selected_sites():
    assert make_config("fedavg", "support2:dirichlet", sites=20).min_sites == 10
    share = {"selector": "share", "share": "0.2"}
    assert make_config("fedavg", "support2:dirichlet", sites=20, values=share).min_sites == 2
    names = list(make_parts_sites("support2:dirichlet", 5))
    few = {"selector": "list", "sites": ",".join(names[:2])}
    assert make_config("fedavg", "support2:dirichlet", sites=5, values=few).min_sites == 2
    with pytest.raises(UserError, match="min_sites: expected at most the 2 sites that selector list asks, got 3"):
        make_config("fedavg", "support2:dirichlet", sites=5, values=few | {"min_sites": 3})


def make_parts_sites(task, count):
    from fairflare.engine.setup.assembly import site_names

    return site_names(make_config("fedavg", task, sites=count))


@pytest.mark.parametrize("secure_sum", ["none", "masks"])
def test_a_run_selects_and_steps(tmp_path, secure_sum):
    shared = {"selector": "share", "share": "0.5", "secure_sum": secure_sum}
    momentum = {"server_optimizer": "momentum", "server.beta": "0.5"}
    made = partial(make_config, "fedism", "support2:dirichlet", sites=6, rounds=3, seed=1)
    chosen = made(values=shared | momentum)
    (tmp_path / "run").mkdir()
    final = run_local(chosen, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    assert all(len(line["accepted"]) == 3 and line["rejected"] == {} for line in rounds)
    assert len({tuple(line["selected"]) for line in rounds}) > 1
    (tmp_path / "plain").mkdir()
    plain = run_local(made(values=shared), tmp_path / "plain")
    assert model_hash(final) != model_hash(plain)


def test_a_comparisons_arm_overrides_what_all_share():
    found = arms(["fedism-plus", "fedism-plus:trainer.rho_max=0.4"], TASK, [0], values={"rho_max": "0.2"})
    radii = [(c.settings["trainer.rho_max"], c.settings["probe.sharpness.rho_max"]) for _, c in found]
    assert radii == [(0.2, 0.2), (0.4, 0.2)]
    adam = "fedavg:server_optimizer=adam,server.lr=0.1"
    (_, plain), (_, stepped) = arms(["fedavg", adam], TASK, [0], values={"train.lr": "0.02"})
    assert plain.training == stepped.training and stepped.settings["server.lr"] == 0.1


def test_data_seeds_are_the_comparisons_own_by_either_name():
    with pytest.raises(UserError, match="data_seed: expected the same for all methods"):
        arms(["fedavg:task.data_seed=3"], "support2:dirichlet", [0])
    found = arms(["fedavg"], "support2:dirichlet", [0, 1], values={"task.data_seed": "7"})
    assert [c.options["data_seed"] for _, c in found] == [7, 7]


def test_grids_take_full_names_and_those_of_chosen_parts():
    assert on_grid(("fedavg", "fedism"), ("rule.q=1,2",)) == ["fedavg", "fedism:rule.q=1", "fedism:rule.q=2"]
    label = "fedavg:server_optimizer=adam"
    assert on_grid((label, "fedavg"), ("server.lr=0.1,1",)) == [
        f"{label},server.lr=0.1",
        f"{label},server.lr=1",
        "fedavg",
    ]
    assert on_grid(("fedism",), ("rho_max=0.1,0.2",)) == ["fedism:rho_max=0.1", "fedism:rho_max=0.2"]
    with pytest.raises(UserError, match="no METHOD has the key 'server.lr'"):
        on_grid(("fedavg",), ("server.lr=0.1",))


def test_a_folders_pairs_give_way_to_full_names():
    assert beneath({"labels": "a,b", "size": "3"}, {"task.labels": "c,d"}) == {"size": "3", "task.labels": "c,d"}


def test_rows_name_parts_and_short_keys(alpha):
    row = {r["id"]: r for r in method_rows()}["fedism"]
    assert (row["selector"], row["server_optimizer"]) == ("all", "none")
    assert row["parameters"]["rho_max"] == 0.05 and row["parameters"]["q"] == 2.0
    parts = {(r["kind"], r["id"]): r for r in part_rows()}
    assert parts["server optimizer", "adam"]["parameters"]["lr"] == 0.01 and parts["selector", "share"]["summary"]


def test_a_job_says_the_same_where_flare_reads_it_as_hocon(tmp_path):
    """FLARE's ``nvflare job submit`` writes a job's configuration anew, and a dot in a key divides it there."""
    pyhocon = pytest.importorskip("pyhocon")
    for method in ("fedlwr", "fedism-plus", "fedavg"):
        content = config(method).to_json()
        (tmp_path / "config.json").write_text(json.dumps({"args": {"config": content}}))
        read = pyhocon.ConfigFactory.parse_file(str(tmp_path / "config.json"))
        again = json.loads(pyhocon.HOCONConverter.to_json(read))["args"]["config"]
        assert RunConfig.from_json(again) == config(method)


@each(
    "settings, text",
    [
        ([], "settings: expected names and values"),
        ({"rule": 3}, "settings: rule: expected names and values, got 3"),
        ({"rule.q": {"q": 1}}, "settings: expected names without dots, got 'rule.q'"),
        ({"probe": {"sharpness": {"a.b": 1}}}, "settings: probe.sharpness: expected names without dots, got 'a.b'"),
        ({"probe": {"sharpness": 2}}, "settings: probe.sharpness: expected names and values, got 2"),
        ({3: {}}, "settings: expected names without dots, got 3"),
    ],
)
def test_settings_by_owner_are_checked_before_they_are_read(settings, text):
    with pytest.raises(UserError, match=re.escape(text)):
        flat(settings)


def test_settings_by_owner_and_by_full_name_are_the_same():
    found = config("fedism-plus").settings
    assert flat(nested(found)) == found and nested(found)["probe"]["sharpness"]["rho_max"] == 0.1


def test_a_setting_that_came_later_changes_no_configuration_that_does_without():
    """A file from before ``train.local_steps`` is read, and the same choices still have its hash."""
    plain, stepped = config(), config(**{"train.local_steps": "100"})
    content = plain.to_json()
    assert "local_steps" not in content["training"] and plain.training.local_steps is None
    assert RunConfig.from_json(content) == plain
    named = RunConfig.from_json({**content, "training": {**content["training"], "local_steps": None}})
    assert named == plain and named.sha256() == plain.sha256() != stepped.sha256()
    assert stepped.to_json()["training"]["local_steps"] == 100
    assert RunConfig.from_json(stepped.to_json()) == stepped
    for wrong in (0, "x", 1.5, True):
        with pytest.raises(UserError, match="local_steps: expected"):
            config(local_steps=wrong)
    with pytest.raises(UserError, match="training: expected"):
        RunConfig.from_json({**content, "training": 3})


BELOW = {"batch_size": 1, "momentum": -0.1, "weight_decay": -1, "logit_tau": -1}
BELOW |= dict.fromkeys(("rounds", "epochs", "local_steps", "fewest_steps", "most_steps"), 0)


def test_no_configuration_trains_below_the_least_values():
    """``Training`` itself leaves that to the ranges of its fields."""
    config = make_config("fedavg", "support2")
    for name, value in BELOW.items():
        with pytest.raises(UserError, match=f"train.{name}: expected .* from "):
            make_config("fedavg", "support2", values={f"train.{name}": value})
        with pytest.raises(UserError, match=f"{name}: expected .* from "):
            RunConfig.from_json({**config.to_json(), "training": {**config.to_json()["training"], name: value}})
