# SPDX-License-Identifier: Apache-2.0
"""A job that names what it should not of a site's own files, and a script that reports more than may leave."""

import pytest

from fairflare.core import user_code
from fairflare.core.errors import DataError, EgressRefused
from fairflare.flare.script import refuse_small_groups
from fairflare.tasks.own.script import Script

HARM = """
from pathlib import Path
MARK = Path({mark!r})
MARK.write_text("imported")
def clean_up():
    MARK.write_text("called")
"""


@pytest.fixture
def vouched(tmp_path, monkeypatch):
    """A site's ``local/custom``."""
    home = tmp_path / "custom"
    home.mkdir()
    monkeypatch.setattr(user_code, "_vouched", [home])
    monkeypatch.syspath_prepend(str(home))
    return home


def test_no_function_of_a_file_that_is_no_script_is_called(vouched, tmp_path):
    """The network is made before anything else: what makes it has to be a script's as well."""
    mark = tmp_path / "harm"
    (vouched / "nightly_jobs_of_ours.py").write_text(HARM.format(mark=str(mark)))
    task = Script(site_names="a,b", script="nightly_jobs_of_ours.clean_up")
    with pytest.raises(DataError, match="does not import fairflare.client"):
        task.network()
    assert not mark.exists()


def counts(positives, negatives, group="f"):
    return {f"positives/{group}": positives, f"true_positives/{group}": 0.0} | {
        f"negatives/{group}": negatives,
        f"false_positives/{group}": 0.0,
    }


def test_a_script_reports_no_counts_of_few_in_a_group():
    """For FairFed: as this package's own sites, which count four kinds of examples of a group or none."""
    for fits in (counts(10.0, 30.0), counts(0.0, 10.0), {"similarity/conv1": 0.1, "correct": 3.0, "seen": 4.0}):
        refuse_small_groups(fits, 10)
    few = [counts(9.0, 30.0), counts(30.0, 1.0), counts(0.0, 0.0), counts("x", 30.0), counts(-5.0, 30.0)]
    for wrong in (*few, {"positives/f": 30.0}, {"true_positives/f": 1.0}):
        with pytest.raises(EgressRefused, match="below min_count or of unknown size"):
            refuse_small_groups(wrong, 10)
    with pytest.raises(EgressRefused):
        refuse_small_groups(counts(900.0, 900.0), None)


def test_a_script_reports_no_groups_from_which_a_small_one_follows():
    """n_k and the number of seen examples are no secret: what is in no reported group follows."""
    losses = {"group_loss/f": 0.5, "group_count/f": 91.0}
    for total in (91, 101, 300, None):
        refuse_small_groups(losses, 10, total)
    for total in (92, 100):
        with pytest.raises(EgressRefused, match="leaves fewer examples than min_count in the other groups"):
            refuse_small_groups(losses, 10, total)
    refuse_small_groups({**counts(30.0, 30.0), "seen": 70.0}, 10)
    with pytest.raises(EgressRefused, match="scalar positives: leaves fewer"):
        refuse_small_groups({**counts(30.0, 30.0), "seen": 63.0}, 10)
