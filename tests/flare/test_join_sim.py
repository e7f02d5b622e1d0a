# SPDX-License-Identifier: Apache-2.0
"""A join as one FLARE job: the numbers of the same join in one process, bit for bit."""

import json

from fairflare.engine.setup.join.local import run_join
from fairflare.functional.decision import Design
from fairflare.studies.join import Question
from fairflare.studies.join_job import job_of, join_by_job
from own_folder import write_tables

SITES = ("east", "west")


def test_a_join_in_the_simulator_gives_the_numbers_of_one_process(tmp_path):
    options = {"task.datalists": str(write_tables(tmp_path / "data", SITES)), "task.site_names": ",".join(SITES)}
    options |= {"task.labels": "lived,died", "task.label": "outcome", "task.features": "age,score"}
    options |= {"task.model": "linear"}
    config = job_of(Question(("fedavg",), "tabular", Design(2, 1), choices={"rounds": 1, "values": options}))
    (tmp_path / "here").mkdir()
    expected = run_join(config, tmp_path / "here")
    found = join_by_job(config, tmp_path / "there", env="sim")
    for key in ("candidates", "weights", "refused", "hospitals"):
        assert found[key] == expected[key]
    for site in SITES:
        assert {k: v for k, v in found["sites"][site].items() if k != "answer"} == expected["sites"][site]
        kept = [json.loads((tmp_path / w / "sites" / f"{site}.join.json").read_text()) for w in ("here", "there")]
        assert kept[0] == kept[1]
    for fold in ("fold0", "fold1"):
        models = [(tmp_path / where / fold / "model.safetensors").read_bytes() for where in ("here", "there")]
        assert models[0] == models[1]
