# SPDX-License-Identifier: Apache-2.0
"""What the author of a job without code can make of the columns that its options name."""

import copy
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairflare.core.errors import UserError
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.engine.memory import SpentFile
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.at_site import spender
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.site_policy import Policy, after_spending
from fairflare.privacy.differential_privacy import Draws, Mechanism, RecordBudget, SiteNoise

TABLE = {"site_names": "a", "label": "died", "features": "age", "scaling": "site", "model": "linear"}
IMAGES = {"site_names": "a", "size": "32", "channels": "1"}
PERSON = "M-1947"
FIRST = "13d573f0-7da8-47d2-9a5c-a8bd26c996a9"


def column(kind="category", name="patient_id", **more):
    return {"features": f"age,{name}", "columns": json.dumps({name: {"kind": kind, **more}})}


@pytest.mark.parametrize(
    "name",
    ["patient_id", "Patient ID", "subject", "case-id", "MRN", "name", "nhs_number", "Patientennummer", "last name"],
)
@pytest.mark.parametrize(
    "options",
    [
        lambda name: ("tabular", column(name=name, levels=[PERSON])),
        lambda name: ("tabular", column(name=name, codes=[PERSON], missing=True)),
        lambda name: ("tabular", column("days", "age", since=name) | {"features": "age"}),
        lambda name: ("tabular", {"label": name, "labels": f"{PERSON},other"}),
        lambda name: ("classification", IMAGES | {"attribute_values": f"{name}={PERSON}|other"}),
    ],
)
def test_no_job_asks_for_a_person(options, name):
    """One's own feature moves a weight, and one's own group is a finding, where the person is among the patients."""
    task, values = options(name)
    with pytest.raises(UserError, match=f"columns: expected none that names patients, got '{name}'"):
        make_config("fedavg", task, values=values if task == "classification" else TABLE | values)


def test_what_codes_tell_of_one_patient_is_one_bit_that_a_site_can_refuse(tmp_path, monkeypatch):
    """A value that the job calls empty is no number of its column any more: that it occurs is seen in the update."""
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(tmp_path / "a.yaml"))
    (tmp_path / "a.yaml").write_text("data_root: .\ndatalist: t.csv\nmin_count: 10\n")
    rows = [f"{age},{age % 2},{('train', 'val', 'test')[max(0, age - 77)]}" for age in range(20, 80)]
    (tmp_path / "t.csv").write_text("\n".join(["age,died,split", *rows]))
    still = {}
    for code in ("41", "93"):
        values = TABLE | column("number", "age", codes=[code], missing=True) | {"features": "age", "optimizer": "sgd"}
        config = make_config("fedavg", "tabular", values=values | {"weight_decay": "0", "batch_size": "58"})
        parts = build_parts(config)
        site = build_site(config, parts, "a", local=tmp_path)
        assert site.handle(Instruction("preflight", Round(1, 1), {})).n_examples == 58, "no row is left out"
        answer = site.handle(Instruction("train", Round(1, 1), copy.deepcopy(parts.network.state_dict())))
        still[code] = bool((answer.update["head.weight"][:, 1] == 0).all())
    assert still == {"41": False, "93": True}
    with pytest.raises(UserError, match="columns: expected some of bmi, died, got 'age'"):
        Policy(columns=["bmi", "died"]).check(config)
    Policy(columns=["age", "died"]).check(config)


def test_a_private_job_that_has_just_begun_leaves_the_next_one_no_more_than_it_may_spend_itself(tmp_path):
    """Two jobs of 3 kept to 5 together as long as the second one came after the first one's first round."""
    config = make_config("fedavg", "heart:full", values={"trainer": "dp-sgd", "epsilon": "3", "federation": FIRST})
    parts = build_parts(config)
    site = build_site(config, parts, "VA", ledger=tmp_path / "hospital-a")
    answer = site.handle(Instruction("train", Round(1, 20), copy.deepcopy(parts.network.state_dict())))
    assert 0 < answer.scalars["epsilon"] < 2, "so that another job's 3 seem to be left of 5"
    policy, next_one = Policy(epsilon=5), dataclasses.replace(config, seed=7)
    with pytest.raises(UserError, match="trainer.epsilon: expected at most 2, which is left of this site's budget"):
        after_spending(policy, tmp_path, next_one).check(next_one)
    after_spending(policy, tmp_path, config).check(config)  # a killed run goes on within its own 3


def test_a_new_job_is_not_taken_for_a_federation_called_none(tmp_path):
    """Its author names the first job's federation so that the second one's ledger seems to be the first one's."""
    config = make_config("fedavg", "heart:full", values={"trainer": "dp-sgd", "epsilon": "3", "federation": "none"})
    key = spender(config)
    SpentFile(tmp_path / "hospital-a.privacy.json", key).write({"epsilon": 3.0, "budget": 3.0, "delta": 1e-5})
    after_spending(Policy(epsilon=5), tmp_path, config).check(config)
    new = dataclasses.replace(config, federation="")
    with pytest.raises(UserError, match="trainer.epsilon: expected at most 2"):
        after_spending(Policy(epsilon=5), tmp_path, new).check(new)


def test_two_jobs_that_charge_at_the_same_time_are_both_charged(tmp_path):
    """What one wrote between the other's reading and writing was lost, and with it rounds that its budget covers."""
    file = tmp_path / "hospital-a.privacy.json"

    def charge(run):
        for rounds in range(1, 31):
            SpentFile(file, run).write({"spent": rounds})
            assert SpentFile(file, run).read() == {"spent": rounds}

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(charge, "abc"))


def test_two_jobs_that_charge_one_run_at_the_same_time_are_both_charged(tmp_path):
    """As of two submitters: each read the run's ledger, charged its own round, and wrote over the other's."""
    file, one = tmp_path / "hospital-a.privacy.json", Mechanism(2.0, 0.1, 1)

    def charge(_):
        records = RecordBudget(50.0, 1e-5, SpentFile(file, "records"), lambda purpose: Draws(None))
        hospital = SiteNoise(1.0, 50.0, 1e-5, 1, 30, SpentFile(file, "hospital"))
        number = records.count(500)
        for _ in range(10):
            assert records.charge(one)
            hospital.charge()
        return number

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(charge, range(3)))) == 1
    spent = {run: SpentFile(file, run).read()["spent"] for run in ("records", "hospital")}
    assert len(spent["records"]) == 1 + 30 and spent["hospital"][0][2] == 30
