# SPDX-License-Identifier: Apache-2.0
"""What preflight's findings told of few patients, to a job that steers them by its options."""

import json

import numpy as np
import pytest
from PIL import Image

from fairflare.cli.main import main
from fairflare.core.errors import EgressRefused
from fairflare.core.manifest import all_versions
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.privacy.egress import Egress

OF_CLASS = (30, 20, 24, 4)
"""Training images of the four classes: four patients have the last."""


def write(folder, of_class):
    """The site's list: 78 training images, four of each class to validate on and two to test."""
    counts = {"training": of_class, "validation": (4,) * 4, "testing": (2,) * 4}
    labels = {split: [k for k, n in enumerate(of) for _ in range(n)] for split, of in counts.items()}
    lists = {split: [{"image": "image.png", "label": k} for k in of] for split, of in labels.items()}
    (folder / "list.json").write_text(json.dumps(lists))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A hospital's images of four classes, with min_count 10 in its own configuration."""
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(tmp_path / "image.png")
    write(tmp_path, OF_CLASS)
    (tmp_path / "a.yaml").write_text("data_root: .\ndatalist: list.json\nmin_count: 10\n")
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(tmp_path / "a.yaml"))
    return tmp_path


def told(folder, **values):
    """What a job with these options is told of the site's data: the findings that leave, and n_examples."""
    values = {"site_names": "a", "size": "32", "channels": "1", **values}
    config = make_config("fedavg", "classification", values=values)
    found = build_site(config, build_parts(config), "a", local=folder)
    answer = found.handle(Instruction("preflight", Round(1, 1), {}))
    assert not answer.error, answer.error
    return dict(answer.metrics["findings"]), answer.n_examples


def test_a_job_cannot_count_the_patients_of_a_rare_class(site):
    """With labels=3 every image of the fourth class is an error: four of them, fewer than min_count."""
    findings, n = told(site, labels="3")
    assert findings["error/train/label"] == 0 and n is None


def test_no_job_and_no_two_jobs_tell_four_patients_from_six(site):
    """labels=2 counts the third class and the fourth, labels=3 the fourth: the difference of the two told it."""
    steps = (("2", "5"), ("3", "5"), ("4", "5"), ("3", "none"), ("3", "11"))
    jobs = [{"labels": labels, "min_count": least} for labels, least in steps]
    four = [told(site, **job) for job in jobs]
    write(site, (30, 20, 22, 6))
    assert [told(site, **job) for job in jobs] == four


def test_counts_travel_in_bands_alone(site):
    """24 and 29 bad labels are told alike, and stepping through minima of its own tells a job no more."""
    answers = set()
    for bad in (24, 29):
        write(site, (78 - bad, 0, bad, 0))
        answers.add(tuple(told(site, labels="2", min_count=str(n))[0]["error/train/label"] for n in range(0, 36, 5)))
    assert answers == {(2.0,) * 5 + (0.0,) * 3}


def test_the_number_of_small_groups_does_not_leave(site):
    findings, _ = told(site, labels="4", group_by="label")
    copies = dict.fromkeys(("warning//copies", "warning/val/copies", "warning/test/copies"), 0)  # one image for all
    assert findings == {"warning/train/small_group": 0, **copies}


def test_what_the_command_says_may_leave_is_what_leaves(site, capsys):
    with pytest.raises(SystemExit):
        main(["preflight", str(site / "a.yaml"), "--kind", "classification", "--classes", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [f for f in found if f["code"] == "label"] == [
        {"level": "error", "code": "label", "split": split, "count": ""} for split in ("test", "train", "val")
    ]


@pytest.mark.parametrize("count", [4, 54, 17.5, 10**6])
def test_a_site_sends_no_count_in_place_of_a_band(count):
    egress = Egress({}, (), frozenset({"loss"}), ())
    said = {"findings": {"error/train/label": count}, "versions": all_versions()}
    if count == 4:
        said["findings"]["error/train/label"] = 4.5
    with pytest.raises(EgressRefused):
        egress.check("preflight", Answer("site-1", 1, metrics=said))
