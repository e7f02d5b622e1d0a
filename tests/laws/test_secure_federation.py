# SPDX-License-Identifier: Apache-2.0
"""Federations with secure sums: the weights of the open ones, and no number of a site's own outside of it."""

import dataclasses
import json
import math
import types
from fractions import Fraction

import pytest
import torch

from cases import each
from fairflare.core.errors import DataError, RunFailed, UserError
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.engine.audit import verify
from fairflare.engine.exchanges.sums import SiteSums
from fairflare.engine.in_process import InProcess
from fairflare.engine.server_sums import SelfMasked
from fairflare.engine.setup.assembly import Credentials, build_federation, build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.privacy.secure_sums import BITS, SIZE, combine
from fairflare.privacy.sum_keys import SEALED, TAG, PairwiseKeys, self_masked, threshold
from fairflare.privacy.sum_protocol import SumRefused
from fairflare.probes.sharpness import Sharpness
from fairflare.report.write import write_report
from helpers import sites_of

SITES = ["site-1", "site-2", "site-3", "site-4"]


def config_of(scheme, method="fedism-plus", rounds=5, **values):
    values = {"model": "linear", "n_sites": 4, "batch_size": 512, "secure_sum": scheme, "robust": "off", **values}
    return make_config(method, "support2:dirichlet", rounds=rounds, values=values)


class Spy(InProcess):
    """Keeps what the server gets to see, and lets ``fault`` change it."""

    def __init__(self, sites, fault=lambda instruction, answer: answer, there=lambda round, site: True):
        super().__init__(sites)
        self.fault, self.there, self.seen = fault, there, []

    def exchange(self, instructions):
        for answer in super().exchange(instructions):
            one = instructions[answer.site]
            self.seen.append((one.task, one.round.number, answer))
            changed = self.fault(one, answer) if self.there(one.round.number, answer.site) else None
            if changed is not None:
                yield changed


def federate(config, folder, **spying):
    folder.mkdir(parents=True)
    parts = build_parts(config)
    initial = {key: value.clone() for key, value in parts.model.items()}
    # Each site needs a network of its own: a withheld update must not depend on who trains next.
    sites = sites_of(config, parts)
    spy = Spy(sites, **spying)
    model = build_federation(config, parts, spy, folder, "local", credentials=Credentials()).run(initial)
    return model, verify(folder / "audit.jsonl"), spy


def close(one, other, tolerance=2e-6):
    return all(torch.allclose(one[key], other[key], rtol=0, atol=tolerance) for key in one)


def weighed_at_sites(monkeypatch):
    """(round, site) -> (D_k, p_k D_k) as they were before the mask."""
    found, original = {}, SiteSums._weigh

    def weigh(self, held, total):
        answer = original(self, held, total)
        found[answer.round, answer.site] = held.update, answer.update
        return answer

    monkeypatch.setattr(SiteSums, "_weigh", weigh)
    return found


def weights(weighed):
    """(round, site) -> p_k."""
    found = {}
    for where, (update, weighted) in weighed.items():
        key = max(update, key=lambda k: float(update[k].abs().max()))
        at = update[key].abs().argmax()
        found[where] = float(weighted[key].flatten()[at] / update[key].flatten()[at])
    return found


SUMMED = [{}, {"state": "L", "q": 1.0}, {"prior": "examples"}, {"beta": 1.0}, {"method": "qffl", "q": 2.0}]
SUMMED += [{"method": "fedcostwavg"}, {"method": "maxfl"}]


@each("settings", SUMMED, ids=str)
def test_the_weights_are_those_of_the_open_run(settings, tmp_path, monkeypatch):
    weighed = weighed_at_sites(monkeypatch)
    open_model, entries, _ = federate(config_of("none", **settings), tmp_path / "open")
    secret_model, secret, _ = federate(config_of("masks", **settings), tmp_path / "secret")
    rounds = [e for e in entries if e["event"] == "round"]
    expected = {(e["round"], site): weight for e in rounds for site, weight in e["weights"].items()}
    assert weights(weighed) == {key: pytest.approx(weight, rel=1e-4) for key, weight in expected.items()}
    assert len(set(map(lambda w: round(w, 4), expected.values()))) > 4
    assert close(open_model, secret_model)
    assert all(not e["weights"] and not e["rejected"] for e in secret if e["event"] == "round")


def test_the_weights_are_those_of_the_open_run_where_sites_come_and_go(tmp_path, monkeypatch):
    """site-4 is new in round 3, site-2 is away in round 4."""

    def there(round, site):
        return not (site == "site-4" and round < 3) and not (site == "site-2" and round == 4)

    weighed = weighed_at_sites(monkeypatch)
    # Every site has said how many examples it has: being away starts after that.
    runs = {}
    for scheme in ("none", "masks"):
        config = config_of(scheme, rounds=6, min_sites=3)
        parts = build_parts(config)
        sites = sites_of(config, parts)

        class Leaving(InProcess):
            def exchange(self, instructions):
                for site, one in sorted(instructions.items()):
                    if one.task in ("preflight", "evaluate") or there(one.round.number, site):
                        yield from super().exchange({site: one})

        (tmp_path / scheme).mkdir()
        initial = {key: value.clone() for key, value in parts.model.items()}
        model = build_federation(config, parts, Leaving(sites), tmp_path / scheme, "local").run(initial)
        runs[scheme] = model, [e for e in verify(tmp_path / scheme / "audit.jsonl") if e["event"] == "round"]
    expected = {(e["round"], site): weight for e in runs["none"][1] for site, weight in e["weights"].items()}
    assert {site for number, site in expected if number == 4} == {"site-1", "site-3", "site-4"}
    assert weights(weighed) == {key: pytest.approx(weight, rel=1e-4) for key, weight in expected.items()}
    for e in runs["none"][1]:
        assert sum(e["weights"].values()) == pytest.approx(1.0, abs=1e-12)
    assert close(runs["none"][0], runs["masks"][0])


def test_no_number_of_a_site_reaches_the_server_or_its_files(tmp_path):
    _, entries, _ = federate(config_of("none"), tmp_path / "open")
    model, _, spy = federate(config_of("masks"), tmp_path / "secret")
    write_report(tmp_path / "secret")
    rounds = [e["accepted"] for e in entries if e["event"] == "round"]
    # Round 1 starts from the same model in both runs: these very numbers are what the sites hide there.
    hidden = {repr(v) for row in rounds[0].values() for v in row["scalars"].values()}
    hidden |= {repr(row["metrics"][name]) for row in rounds[0].values() for name in ("loss", "train_loss")}
    assert len(hidden) >= 4 * 4
    for file in (tmp_path / "secret").iterdir():
        if file.is_file() and file.suffix in (".jsonl", ".json", ".html"):
            text = file.read_text()
            assert not [number for number in hidden if number in text], file.name
    for task, _, answer in spy.seen:
        assert not answer.scalars and not {"loss", "train_loss"} & set(answer.metrics) or task == "evaluate"
        assert (answer.update is None) == (task != "weigh")
        for entry in (answer.update or {}).values():
            # What an update looks like tells nothing of it: numbers of all sizes up to 2^63.
            assert entry.dtype == torch.int64 and (entry.numel() < 8 or entry.double().abs().mean() > 2**60)
    report = json.loads((tmp_path / "secret" / "report.json").read_text())
    assert report["status"] == "completed" and "Traceback" not in (tmp_path / "secret" / "report.html").read_text()


def test_two_runs_end_in_the_same_bits_though_their_masks_differ(tmp_path):
    (one, _, first), (two, _, second) = (federate(config_of("masks"), tmp_path / name) for name in "ab")
    assert all(torch.equal(one[key], two[key]) for key in one)
    sums = [[a.sealed["sum"] for task, _, a in spy.seen if task == "sum"] for spy in (first, second)]
    assert len(sums[0]) == 20 and not set(sums[0]) & set(sums[1])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["train", "sum", "weigh"])
def test_a_run_killed_in_the_middle_of_a_round_continues_to_the_same_bits(task, tmp_path, monkeypatch):
    """With new keys; a site's share of the moving average comes from its own disk."""
    config = config_of("masks", trainer="sgd", keep_optimizer=True)
    for name in "ab":
        (tmp_path / name).mkdir()
    whole = run_local(config, tmp_path / "a")

    class Killed(InProcess):
        def exchange(self, instructions):
            for answer in super().exchange(instructions):
                one = instructions[answer.site]
                if (one.task, one.round.number, answer.site) == (task, 3, "site-3"):
                    raise KeyboardInterrupt
                yield answer

    with monkeypatch.context() as patched:
        patched.setattr("fairflare.engine.setup.local.InProcess", Killed)
        with pytest.raises(KeyboardInterrupt):
            run_local(config, tmp_path / "b")
    continued = run_local(config, tmp_path / "b")
    assert all(torch.equal(whole[key], continued[key]) for key in whole)
    entries = verify(tmp_path / "b" / "audit.jsonl")
    assert [e["round"] for e in entries if e["event"] == "round"] == [1, 2, 3, 4, 5]


def test_with_secure_sums_no_site_forgets_a_round_because_the_server_says_so(tmp_path, monkeypatch):
    """Else what the others' sums lack would be the number of the one site that is told so."""

    class Lies(Spy):
        def exchange(self, instructions):
            yield from super().exchange({s: dataclasses.replace(one, counted=0) for s, one in instructions.items()})

    honest, _, _ = federate(config_of("masks", rounds=3), tmp_path / "honest")
    monkeypatch.setitem(globals(), "Spy", Lies)
    lied_to, _, spy = federate(config_of("masks", rounds=3), tmp_path / "lied to")
    assert isinstance(spy, Lies) and all(torch.equal(honest[key], lied_to[key]) for key in honest)


def test_a_masked_update_of_another_width_is_named(tmp_path):
    text, _ = run_to_its_end(tmp_path, wrong_width)
    assert "site-2: dtype" in text and "expected int64, got torch.int32" in text


def wrong_width(instruction, answer):
    if (instruction.task, answer.site) != ("weigh", "site-2"):
        return answer
    return dataclasses.replace(answer, update={key: value.to(torch.int32) for key, value in answer.update.items()})


@pytest.mark.slow
def test_with_some_neighbours_or_with_all_the_bits_are_the_same(tmp_path, monkeypatch):
    """Among 32 sites each has 12; in round 2 one is lost once the numbers are summed, and a new graph is drawn."""
    asked = []
    original = PairwiseKeys.neighbours
    monkeypatch.setattr(PairwiseKeys, "neighbours", lambda *args: asked.append(original(*args)) or asked[-1])
    values = {"n_sites": 32, "rounds": 2, "min_sites": 20}
    models = [
        federate(config_of("masks", mask_neighbours=chosen, **values), tmp_path / chosen, fault=lost("weigh", "site-3"))
        for chosen in ("auto", "all")
    ]
    (some, entries, _), (every, _, _) = models
    assert all(torch.equal(some[key], every[key]) for key in some)
    assert [len(e["accepted"]) for e in entries if e["event"] == "round"] == [32, 31]
    assert [len(found) for found in asked] == 2 * [12] * 32 + [12] * 31 + 2 * [31] * 32 + [30] * 31


def lost(task, site, code=None):
    def fault(instruction, answer):
        if (instruction.task, answer.site, instruction.round.number) != (task, site, 2):
            return answer
        return dataclasses.replace(answer, error="EXECUTION_EXCEPTION OutOfMemory") if code else None

    return fault


@pytest.mark.parametrize("code", [None, "site_error"])
def test_a_site_lost_before_its_sum_is_left_out_and_the_rest_is_summed_again(code, tmp_path):
    values = {"min_sites": 3}
    _, entries, spy = federate(config_of("masks", **values), tmp_path / "run", fault=lost("sum", "site-3", code))
    second = next(e for e in entries if e["event"] == "round" and e["round"] == 2)
    assert {site: why["code"] for site, why in second["rejected"].items()} == {"site-3": code or "no_answer"}
    assert list(second["accepted"]) == ["site-1", "site-2", "site-4"]
    asked = [(a.site, number) for task, number, a in spy.seen if task == "sum" and number == 2]
    assert len(asked) == 4 + 3
    counts = [len(e["accepted"]) for e in entries if e["event"] == "round"]
    # A silent site is invited first, one that told of an error is there.
    assert counts == ([4, 3, 4, 4, 4] if code else [4, 3, 3, 4, 4])


def test_a_site_that_is_late_to_train_has_sealed_nothing_and_is_summed_in_the_next_round(tmp_path):
    """``min_responses`` ends the training alone; the sums wait for everyone who has trained."""
    config = config_of("masks", rounds=4, min_sites=3, min_responses=3)
    _, entries, spy = federate(config, tmp_path / "run", fault=lost("train", "site-3"))
    rounds = [e for e in entries if e["event"] == "round"]
    left_out = [{site: why["code"] for site, why in e["rejected"].items()} for e in rounds]
    assert left_out == [{}, {"site-3": "late"}, {}, {}]
    sealed = {task: {a.site for t, number, a in spy.seen if (t, number) == (task, 2)} for task in ("sum", "weigh")}
    assert sealed == dict.fromkeys(("sum", "weigh"), {"site-1", "site-2", "site-4"})
    assert [len(e["accepted"]) for e in rounds] == [4, 3, 4, 4] and entries[-1]["status"] == "completed"


def test_a_site_lost_after_the_sum_makes_the_step_shorter_and_tells_nobody_its_weight(tmp_path, monkeypatch):
    """The others mask anew and keep their weights: to share out the lost site's part would tell what it was."""
    weighed = weighed_at_sites(monkeypatch)
    config = config_of("masks", rounds=2, min_sites=3)
    with_all, _, _ = federate(config, tmp_path / "all")
    part = weighed[2, "site-3"][1]
    without, entries, spy = federate(config, tmp_path / "run", fault=lost("weigh", "site-3"))
    assert close({key: with_all[key] - part[key] for key in part}, without, 1e-7)
    asked = [answer.site for task, number, answer in spy.seen if (task, number) == ("weigh", 2)]
    assert sorted(asked) == sorted([*SITES, "site-1", "site-2", "site-4"])
    second = [e for e in entries if e["event"] == "round"][1]
    assert second["rejected"]["site-3"]["code"] == "no_answer" and len(second["accepted"]) == 3
    assert entries[-1]["status"] == "completed"


@pytest.mark.parametrize("silent", [("site-3",), ("site-3", "site-4")])
def test_sites_that_are_lost_before_they_hand_out_shares_count_while_enough_are_left(silent, tmp_path):
    """Three of four recover every cover; a sum that two alone could open is none."""

    def fault(instruction, answer):
        gone = instruction.task == "reveal" and instruction.round.number == 2 and answer.site in silent
        return None if gone else answer

    config = config_of("masks", rounds=2, min_sites=3)
    if len(silent) == 1:
        whole, _, _ = federate(config, tmp_path / "whole")
        found, entries, _ = federate(config, tmp_path / "run", fault=fault)
        assert all(torch.equal(whole[key], found[key]) for key in whole)
        assert [len(e["accepted"]) for e in entries if e["event"] == "round"] == [4, 4]
    else:
        with pytest.raises(RunFailed, match="2 shares of a self-mask were handed out, 3 needed"):
            federate(config, tmp_path / "run", fault=fault)


def wrong(site, task="sum", **change):
    def fault(instruction, answer):
        if instruction.task == task and answer.site == site and instruction.round.number == 2:
            return dataclasses.replace(answer, **change)
        return answer

    return fault


def run_to_its_end(tmp_path, fault):
    with pytest.raises(RunFailed) as failure:
        federate(config_of("masks", min_sites=4), tmp_path / "run", fault=fault)
    return str(failure.value), verify(tmp_path / "run" / "audit.jsonl")


def test_masks_that_do_not_cancel_end_the_run_with_its_last_good_model(tmp_path):
    text, entries = run_to_its_end(
        tmp_path, wrong("site-2", sealed={"sum": b"\x7f" * (4 * SIZE + 3 * TAG), "cover": bytes(3 * SEALED)})
    )
    assert "1 shares of a self-mask were handed out, 3 needed" in text and entries[-1]["status"] == "failed"
    assert (tmp_path / "run" / "model.safetensors").is_file()


@each(
    "task, change, code",
    [
        ("sum", {"sealed": {"sum": bytes(4 * SIZE + 3 * TAG - 1)}}, "malformed"),
        ("sum", {"sealed": {"sum": "text"}}, "malformed"),
        ("sum", {"sealed": None}, "malformed"),
        ("sum", {"round": 1}, "stale"),
        ("train", {"scalars": {"sharpness": 1.0}}, "not_secret"),
        ("train", {"n_examples": 10**9}, "count_mismatch"),
        ("weigh", {"scalars": {"sharpness": 1.0}}, "scalar_unknown"),
        ("weigh", {"update": {}}, "keys"),
        ("weigh", {"update": None}, "keys"),
        ("weigh", {"n_examples": -1}, "n_examples"),
    ],
    ids=str,
)
def test_a_bad_answer_is_named(task, change, code, tmp_path):
    text, _ = run_to_its_end(tmp_path, wrong("site-2", task, **change))
    assert f"site-2: {code}" in text, text


def test_a_site_without_a_key_stops_the_run_before_it_starts(tmp_path):
    def fault(instruction, answer):
        bare = instruction.task == "preflight" and answer.site == "site-2"
        return dataclasses.replace(answer, sealed={}) if bare else answer

    with pytest.raises(RunFailed, match="site-2: key"):
        federate(config_of("masks"), tmp_path / "run", fault=fault)


@pytest.fixture
def asked(tmp_path):
    """Four sites that have trained in round 1, a function that asks one of them, and the order of their sum."""
    config = config_of("masks")
    parts = build_parts(config)
    sites = sites_of(config, parts)
    statements = {name: site.handle(Instruction("preflight", Round(1, 5), {})).sealed for name, site in sites.items()}

    def ask(site, task, number=1, model=None, **sealed):
        return sites[site].handle(
            Instruction(task, Round(number, 5), parts.model if model is None else model, {}, sealed)
        )

    for name in sites:
        ask(name, "train")
    return ask, {"attempt": 0, "statements": statements}, parts.model


def sums_of(ask, order):
    """Everyone's sealed numbers, once enough sites have handed out their shares of the self-masks."""
    roster = sorted(order["statements"])
    masks = SelfMasked("numbers", threshold(len(roster)))
    sealed = {site: masks.read(ask(site, "sum", **order), _numbers, len(roster)) for site in roster}
    holders = types.SimpleNamespace(
        exchange=lambda asked: [ask(site, "reveal", **asked[site].sealed) for site in asked]
    )
    assert not masks.reveal(holders, roster, order["attempt"], Round(1, 5))
    return {site: self_masked(sealed[site], masks.seeds[site]) for site in roster}


def _numbers(answer):
    return answer.sealed["sum"]


def test_a_site_weighs_once_per_round_and_after_its_own_sum_only(asked):
    """With two sums of the server's making a site's weights would follow from the ratio of its two updates."""
    ask, order, _ = asked
    with pytest.raises(SumRefused, match="no sum of this round"):
        ask("site-1", "weigh", sums={}, **order)
    sums = sums_of(ask, order)
    ask("site-1", "weigh", sums=sums, **order)
    with pytest.raises(SumRefused, match="the same masks"):
        ask("site-1", "weigh", sums=sums, **order)
    fewer = {"attempt": 1, "statements": {k: v for k, v in order["statements"].items() if k != "site-4"}}
    with pytest.raises(SumRefused, match="a second sum"):
        ask("site-1", "weigh", sums=sums | {"site-2": sums["site-3"]}, **fewer)
    with pytest.raises(SumRefused, match="a second sum"):
        ask("site-1", "sum", **fewer)


def test_what_a_site_returns_is_masked_whatever_carries_it(asked):
    """No transport has to remember it: an update comes out of a site as int64, and anything else is refused there."""
    ask, order, model = asked
    sums = sums_of(ask, order)
    answer = ask("site-1", "weigh", sums=sums, **order)
    assert answer.update_kind == "masked" and not answer.scalars
    assert {value.dtype for value in answer.update.values()} == {torch.int64}


def test_an_update_whose_mask_was_lost_stays_at_the_site(asked, monkeypatch):
    ask, order, _ = asked
    sums = sums_of(ask, order)
    monkeypatch.setattr(SiteSums, "mask", lambda self, update: dict(update))
    answer = ask("site-1", "weigh", sums=sums, **order)
    assert answer.error == "egress: an update that nobody masked" and answer.update is None


def test_sites_that_were_not_in_the_sum_are_not_in_the_updates(asked):
    ask, order, _ = asked
    three = {"attempt": 0, "statements": {k: v for k, v in order["statements"].items() if k != "site-4"}}
    sums = sums_of(ask, three)
    with pytest.raises(SumRefused, match="not in the sum"):
        ask("site-1", "weigh", sums=sums, **order)


def test_a_site_that_is_trained_twice_does_not_seal_twice(asked):
    """The same masks over other numbers would tell the difference."""
    ask, order, model = asked
    ask("site-1", "sum", **order)
    ask("site-1", "train", model={key: value * 1.5 for key, value in model.items()})
    with pytest.raises(SumRefused, match="a second training"):
        ask("site-1", "sum", **order)
    with pytest.raises(SumRefused, match="nothing was trained"):
        ask("site-1", "sum", number=2, **order)


def first_whole(messages):
    """The exact sum of the first numbers, in units of 2^-1074: whoever has all messages can compute it."""
    return sum(int.from_bytes(message[:SIZE], "big") for message in messages) % 2**BITS


@pytest.mark.parametrize("total", [0.0, 1e-300, 1e-9, 1e9, 1e300], ids=str)
def test_whatever_the_sum_is_moved_to_is_refused_alike(total, asked):
    """An answer for some sums and an error for others would let a server find a site's number by trying."""
    ask, order, _ = asked
    sums = sums_of(ask, order)
    by = int(Fraction(total) * 2**1074) - first_whole(sums.values())
    altered = (first_whole([sums["site-2"]]) + by) % 2**BITS
    moved = sums | {"site-2": altered.to_bytes(SIZE, "big") + sums["site-2"][SIZE:]}
    assert combine(list(moved.values()))[0] == total
    for site in SITES:
        with pytest.raises(SumRefused, match="not the sums that were asked for"):
            ask(site, "weigh", sums=moved, **order)


@pytest.mark.parametrize(
    "change",
    [
        lambda sums: [1e-300, 0.0, 4.0, 4.0],
        lambda sums: {site: sums[site] for site in SITES[:3]},
        lambda sums: {**sums, "site-1": sums["site-2"]},
        lambda sums: {**sums, "site-5": sums["site-2"]},
        lambda sums: {**sums, "site-2": sums["site-2"][:-1]},
        lambda sums: {**sums, "site-2": [1.0]},
        lambda sums: {**sums, "site-2": bytes(len(sums["site-2"]))},
    ],
    ids=["numbers", "fewer", "own", "more", "shorter", "type", "nonsense"],
)
def test_sums_that_are_not_of_everyones_messages_are_refused(change, asked):
    ask, order, _ = asked
    sums = sums_of(ask, order)
    with pytest.raises(SumRefused):
        ask("site-1", "weigh", sums=change(sums), **order)


def test_a_number_out_of_its_range_does_not_enter_a_sum(tmp_path, monkeypatch):
    """Nobody else can see it there."""
    config = config_of("masks", min_sites=3)
    original = Sharpness.measure

    def measure(self, work):
        found = original(self, work)
        return {name: value * 1e9 for name, value in found.items()} if work.data.size("train") == worst else found

    parts = build_parts(config)
    worst = build_site(config, parts, "site-2").look()[1].size("train")
    monkeypatch.setattr(Sharpness, "measure", measure)
    _, entries, _ = federate(config, tmp_path / "run")
    for entry in (e for e in entries if e["event"] == "round"):
        assert set(entry["rejected"]) == {"site-2"} and "outside" in entry["rejected"]["site-2"]["detail"]


def test_the_worst_served_site_may_have_almost_all_the_weight(tmp_path, monkeypatch):
    """Where updates are weighted, a long one is no outlier."""
    weighed = weighed_at_sites(monkeypatch)
    _, entries, _ = federate(config_of("masks", q=20.0, beta=1.0), tmp_path / "run")
    found = weights(weighed).values()
    assert max(found) > 10_000 * min(found)
    assert not any(e["rejected"] for e in entries if e["event"] == "round")


def test_a_site_may_insist_on_secure_sums(tmp_path, monkeypatch):
    (tmp_path / "site.yaml").write_text("secure_sum: true\n")
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(tmp_path / "site.yaml"))
    for scheme in ("masks", "none"):
        config = config_of(scheme)
        parts = build_parts(config)
        if scheme == "masks":
            build_site(config, parts, "site-1")
        else:
            with pytest.raises(DataError, match="takes part in jobs with secure_sum only"):
                build_site(config, parts, "site-1")


def test_encrypted_sums_end_in_the_same_model(tmp_path):
    pytest.importorskip("tenseal")
    models = {}
    for scheme in ("masks", "ckks"):
        (tmp_path / scheme).mkdir()
        models[scheme] = run_local(config_of(scheme), tmp_path / scheme)
    assert close(models["masks"], models["ckks"], 1e-6)


REFUSED = [
    ("fedfv", {"secure_sum": "masks"}, "fedfv weighs by more than sums"),
    ("fedce", {"secure_sum": "masks"}, "fedce weighs by more than sums"),
    ("fedism-plus", {"secure_sum": "maskz"}, "expected one of none, masks, ckks, got 'maskz'"),
    ("fedism-plus", {"secure_sum": "masks", "variant": "reference"}, "variant=reference"),
    ("fedism-plus", {"secure_sum": "masks", "weighting": "examples"}, "weighting=examples"),
    ("fedism-plus", {"secure_sum": "masks", "q": 31.0}, "q=31 is above 30"),
    ("fedism-plus", {"secure_sum": "ckks", "q": 5.0}, "expected q of at most 4, got 5"),
    ("fedism-plus", {"secure_sum": "masks", "n_sites": 2}, "at least 3 sites that train"),
    ("fedism-plus", {"secure_sum": "masks", "n_sites": 3, "leave_out": "site-1"}, "at least 3 sites that train"),
    ("fedism-plus", {"secure_sum": "masks", "min_sites": 2}, "min_sites: expected at least 3"),
]


@each("method, values, text", REFUSED, ids=str)
def test_what_cannot_be_summed_is_refused_in_one_line(method, values, text):
    with pytest.raises(UserError, match=text) as error:
        make_config(method, "support2:dirichlet", values={"n_sites": 4, **values})
    assert "\n" not in str(error.value)


def test_powers_stay_within_doubles():
    assert math.isfinite((1e6) ** 30 * 2.0**40) and (1e-10) ** 30 > 0
