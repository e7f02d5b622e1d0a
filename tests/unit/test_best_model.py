# SPDX-License-Identifier: Apache-2.0
"""The best model of a run by validation: how it is chosen, and that kills change nothing of it."""

import json
import random

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine import best, loop
from fairflare.engine.audit import AuditLog, verify
from fairflare.engine.best import Candidate, Choice, ModelFiles
from fairflare.engine.files import BEST, BEST_MODELS, MODEL, read_json, read_model, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.inference.loaded_run import open_run
from fairflare.report.write import verify_run, write_report
from helpers import Accuracy, initial_model, make_federation, make_sites

ROUNDS, KILLS = 5, 8
LOW, HIGH = {"a": 0.5, "b": 0.9}, {"a": 0.65, "b": 0.7}
"""Higher by the mean, and at the worst site."""


class Dies(BaseException):
    """The process is killed."""


class Chance(Accuracy):
    """Another score for every other model: any round may have the best one."""

    def evaluate(self, outputs, targets):
        return {"accuracy": float(outputs.double().abs().sum() * 1000 % 1)}


def sites(count=3):
    found = make_sites(count)
    for site in found.values():
        site.scoring = Chance()
    return found


class Some(InProcess):
    """Sites that are away in some rounds: site -> those rounds."""

    def __init__(self, away):
        super().__init__(sites())
        self.away = away

    def exchange(self, instructions):
        kept = {
            s: i for s, i in instructions.items() if not (i.task == "train" and i.round.number in self.away.get(s, ()))
        }
        return super().exchange(kept)


def chosen_run(folder, choice, transport=None, rounds=ROUNDS):
    folder.mkdir(exist_ok=True)
    federation = make_federation(folder, transport or InProcess(sites()), rounds=rounds)
    federation.choice = choice
    return federation


def by(name, **more):
    return Choice(name, metric="accuracy", **more)


def lines(folder, event):
    return [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == event]


def one(round, values):
    return Candidate(round, f"hash {round}", values)


def test_a_score_is_the_mean_the_worst_site_or_between_them():
    assert by("mean").score(LOW) == pytest.approx(0.7) and by("worst").score(LOW) == 0.5
    assert by("trade-off", weight=0.25).score(LOW) == pytest.approx(0.7 - 0.25 * (0.7 - 0.5))
    assert by("trade-off", weight=0.0).score(LOW) == by("mean").score(LOW)
    assert by("trade-off", weight=1.0).score(LOW) == by("worst").score(LOW)


def test_of_a_loss_the_largest_value_is_the_worst():
    loss = by("worst", higher=False)
    assert loss.score(HIGH) == -0.7 > loss.score(LOW) == -0.9
    assert loss.best(one(1, LOW), one(2, HIGH)).round == 2


@pytest.mark.parametrize(("name", "round"), [("mean", 1), ("worst", 2), ("trade-off", 2)])
def test_the_better_model_stays(name, round):
    assert by(name).best(one(1, LOW), one(2, HIGH)).round == round


def test_where_both_score_the_same_the_later_one_is_the_best():
    assert by("mean").best(one(1, LOW), one(2, dict(LOW))).round == 2
    assert by("worst").final(one(1, LOW), one(2, dict(LOW))).round == 2


def test_models_are_compared_over_the_sites_that_scored_both():
    """The later one is better at the only site that both know, whatever an easier third hospital says."""
    earlier, later = one(1, {"a": 0.5, "easy": 1.0}), one(2, {"a": 0.6})
    assert by("mean").best(earlier, later).round == 2
    assert by("mean", least=2).best(earlier, later).round == 1, "too few sites say that the later one is better"
    assert by("mean", least=2).final(earlier, later).round == 2, "nor that the earlier one is better than the last"
    assert by("mean").final(one(1, {}), one(2, LOW)).round == 2


@pytest.mark.parametrize("name", ["mean", "worst", "trade-off"])
def test_the_chosen_model_is_that_of_the_best_round(name, tmp_path):
    """Against a choice made by hand of what the log says, over all rounds and the last one's evaluation."""
    final = chosen_run(tmp_path / "run", by(name)).run(initial_model())
    plain = chosen_run(tmp_path / "plain", Choice()).run(initial_model())
    assert model_hash(final) == model_hash(plain), "the choice changes nothing of the training"
    rounds, (evaluation,) = lines(tmp_path / "run", "round"), lines(tmp_path / "run", "evaluation")
    scored = [list(r["accepted"].values()) for r in rounds[1:]]
    scores = [[site["metrics"]["accuracy"] for site in found] for found in scored]
    scores.append([site["val"]["accuracy"] for site in evaluation["sites"].values()])
    combined = {
        "mean": lambda v: sum(v) / len(v),
        "worst": min,
        "trade-off": lambda v: sum(v) / len(v) - 0.5 * (sum(v) / len(v) - min(v)),
    }[name]
    wanted = max(range(ROUNDS), key=lambda i: combined(scores[i]))
    (line,) = lines(tmp_path / "run", "best")
    assert (line["round"], line["model_sha256"]) == (wanted + 1, rounds[wanted]["model_sha256"])
    assert model_hash(read_model(tmp_path / "run" / BEST)) == line["model_sha256"]
    assert model_hash(read_model(tmp_path / "run" / MODEL)) == model_hash(final)
    assert len(list((tmp_path / "run" / BEST_MODELS).iterdir())) == 1, "a next segment may choose it"


def test_without_a_choice_nothing_is_written(tmp_path):
    chosen_run(tmp_path, Choice()).run(initial_model())
    assert not (tmp_path / BEST).exists() and not (tmp_path / BEST_MODELS).exists() and not lines(tmp_path, "best")


POINTS = [(AuditLog, "append"), (loop, "save_checkpoint"), (loop, "save_tensors"), (ModelFiles, "write"),
          (ModelFiles, "clear"), (best, "save_tensors")]  # fmt: skip


def killed_at(monkeypatch, number):
    """Dies at the call of this number among ``POINTS``, counted before and after each; returns the count so far."""
    passed = [0]

    def pass_by():
        passed[0] += 1
        if passed[0] == number:
            raise Dies

    for place, name in POINTS:
        original = getattr(place, name)

        def called(*args, original=original, **kwargs):
            pass_by()
            result = original(*args, **kwargs)
            pass_by()
            return result

        monkeypatch.setattr(place, name, called)
    return passed


def test_killed_anywhere_a_run_makes_the_same_choice(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    chosen_run(whole, by("worst")).run(initial_model())
    (wanted,) = lines(whole, "best")
    assert wanted["round"] < ROUNDS, "the earlier model has to be kept over the kills"
    with monkeypatch.context() as patch:
        count = killed_at(patch, 0)
        chosen_run(tmp_path / "counted", by("worst")).run(initial_model())
    kept = ("round", "model_sha256", "values")
    for number in random.Random(0).sample(range(1, count[0] + 1), KILLS):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Dies):
            killed_at(patch, number)
            chosen_run(folder, by("worst")).run(initial_model())
        chosen_run(folder, by("worst")).run(initial_model())
        found = lines(folder, "best")[-1]
        assert {key: found[key] for key in kept} == {key: wanted[key] for key in kept}, number
        assert model_hash(read_model(folder / BEST)) == wanted["model_sha256"], number


def test_a_completed_run_that_goes_on_makes_the_same_choice(tmp_path):
    chosen_run(tmp_path, by("worst")).run(initial_model())
    chosen_run(tmp_path, by("worst")).run(initial_model())
    first, second = lines(tmp_path, "best")
    assert (first["round"], first["values"], first["sites"]) == (second["round"], second["values"], second["sites"])


def test_a_site_that_missed_a_round_does_not_count_in_it(tmp_path):
    """Round 3 is without site 1: of round 2's model, which was sent in it, that site says nothing."""
    chosen_run(tmp_path, by("mean"), Some({"site-1": (3,)})).run(initial_model())
    rounds = {entry["round"]: entry for entry in lines(tmp_path, "round")}
    assert "site-1" not in rounds[3]["accepted"]
    choice = by("mean")
    second = choice.candidate(2, "", rounds[3])
    assert set(second.values) == {"site-2", "site-3"}
    for other in (choice.candidate(1, "", rounds[2]), choice.candidate(4, "", rounds[5])):
        means = [sum(found.values[site] for site in second.values) / 2 for found in (other, second)]
        assert choice.gains(other, second) == pytest.approx(means[0] - means[1])


def config(method="fedavg", rounds=4, **values):
    values = {"epochs": 1, "local_steps": 2, **values}
    return make_config(method, "support2:dirichlet", sites=3, rounds=rounds, values=values)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    run_local(config(best_by="worst", lr=0.3), folder)
    write_report(folder)
    return folder


def test_the_chosen_model_is_that_of_its_round(tmp_path):
    """The best model of a run is the final one of the run that ends there."""
    long, short = tmp_path / "long", tmp_path / "short"
    for folder in (long, short):
        folder.mkdir()
    run_local(config(rounds=5, best_by="mean", lr=0.3), long)
    (line,) = lines(long, "best")
    assert line["round"] < 5, "another learning rate: the last round must not be the best one here"
    run_local(config(rounds=line["round"], lr=0.3), short)
    assert model_hash(read_model(long / BEST)) == model_hash(read_model(short / MODEL))


def test_the_report_says_which_round_was_chosen_and_both_models_test_values(run):
    found = json.loads((run / "report.json").read_text())["detail"]
    (line,), (evaluation,) = lines(run, "best"), lines(run, "evaluation")
    chosen = found["chosen"]
    assert (chosen["by"], chosen["round"], chosen["rounds"]) == ("worst", line["round"], 4)
    tested = line["sites"] or evaluation["sites"]
    for row in chosen["rows"]:
        assert row["last"] == evaluation["sites"][row["site"]]["test"]["auc"]
        assert row["best"] == tested[row["site"]]["test"]["auc"]
    assert found["fairness"]["mean"] == chosen["test"]["last"]["mean"], "the final model's results come first"
    assert "The model that validation chose" in (run / "report.html").read_text()


def test_the_headline_may_be_the_chosen_models(tmp_path):
    run_local(config(best_by="mean", headline="best", lr=0.3), tmp_path)
    found = write_report(tmp_path)["detail"]
    assert found["fairness"]["mean"] == found["chosen"]["test"]["best"]["mean"] and not found["chosen"]["is_last"]
    assert found["chosen"]["test"]["last"]["mean"] != found["fairness"]["mean"]
    page = (tmp_path / "report.html").read_text()
    assert found["chosen"]["model_sha256"] in page, "who predicts with it compares its hash"
    assert "Chosen model" in page and "final model)" not in page


def test_what_follows_a_run_is_of_the_model_that_its_headline_is_of(tmp_path):
    """The benefit of joining, calibration and the step after the last round; and the model that predicts."""
    run_local(config(best_by="mean", headline="best", lr=0.3, solo=True, after="recalibrate"), tmp_path)
    found = write_report(tmp_path)["detail"]
    assert not found["chosen"]["is_last"]
    sha256 = found["chosen"]["model_sha256"]
    line = next(entry for entry in verify(tmp_path / "audit.jsonl") if entry["event"] == "best")
    assert all("clinical" in own for own in line["sites"].values())
    joined = found["benefit"]["metrics"][found["headline"]]["sites"]
    assert [row["federated"] for row in joined] == [row["value"] for row in found["sites"]]
    fitted = [read_json(path) for path in (tmp_path / "sites").glob("*.after.json")]
    assert fitted and {own["model"] for own in fitted} == {sha256}
    assert model_hash(open_run(tmp_path, plain=True).parts.network.state_dict()) == sha256
    last = open_run(tmp_path, which="final", plain=True)
    assert model_hash(last.parts.network.state_dict()) != sha256


def test_verify_covers_the_chosen_model(run, tmp_path):
    verify_run(run)
    for name, spoil, words in [
        ("other", lambda p: save_tensors(p, {k: v + 1 for k, v in read_model(p).items()}), "is not the model"),
        ("missing", lambda p: p.unlink(), "is missing"),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        for path in run.iterdir():
            if path.is_file():
                (folder / path.name).write_bytes(path.read_bytes())
        spoil(folder / BEST)
        with pytest.raises(UserError, match=f"best.safetensors: {words}"):
            verify_run(folder)


def test_another_choice_than_the_scores_make_is_found(run):
    entries = verify(run / "audit.jsonl")
    line = next(entry for entry in entries if entry["event"] == "best")
    rounds = {entry["round"]: entry["model_sha256"] for entry in entries if entry["event"] == "round"}
    for other in set(rounds) - {line["round"]}:
        false = {**line, "round": other, "model_sha256": rounds[other]}
        forged = [false if e is line else e for e in entries]
        with pytest.raises(UserError, match="by its scores it is"):
            best.check_line(forged, false, 2, entries[0]["rounds"])


@each(
    ("method", "values", "words"),
    [
        ("fedavg", {"best_by": "median"}, "best_by: expected one of none, mean, worst, trade-off, got 'median'"),
        ("fedavg", {"headline": "best"}, "headline: expected final without best_by, got 'best'"),
        ("fedavg", {"best_weight": 0.2}, "best_weight: expected 0.5 without best_by=trade-off, got 0.2"),
        ("fedavg", {"best_by": "trade-off", "best_weight": 1.5}, "best_weight: expected a number from 0 to 1, got 1.5"),
        ("solo", {"best_by": "worst"}, "best_by: solo gives sites models or layers"),
        ("ditto", {"best_by": "mean"}, "best_by: ditto gives sites models or layers"),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_line(method, values, words):
    with pytest.raises(UserError, match=words):
        config(method, **values)


def test_a_run_without_a_choice_is_configured_as_before():
    assert not {"best_by", "best_weight", "headline"} & set(config().to_json())
    chosen = config(best_by="trade-off", best_weight=0.3, headline="best")
    assert RunConfig.from_json(chosen.to_json()) == chosen


def test_secure_sums_keep_the_choice(tmp_path):
    """The scores that it is made by are those that leave the sites in such a run, too."""
    run_local(config("fedism", best_by="worst", secure_sum="masks", min_sites=3), tmp_path)
    write_report(tmp_path)
    verify_run(tmp_path)
    (line,) = lines(tmp_path, "best")
    assert set(line["values"]["last"]) == {"site-1", "site-2", "site-3"}


def test_the_command_verifies_it(run, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(run)])
    assert stop.value.code == 0 and "verified" in capsys.readouterr().out
