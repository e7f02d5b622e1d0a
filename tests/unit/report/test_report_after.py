# SPDX-License-Identifier: Apache-2.0
"""What the report says of a step after the last round: of sites, and of all of them."""

from types import SimpleNamespace

import pytest

from fairflare.report.after import after_sections

SAID = {
    "shared.slope": 1.5,
    "shared.intercept": 0.1,
    "n_all": 200.0,
    "n": 40.0,
    "shared.brier": 0.2,
    "before.brier": 0.3,
}


def section(sites, **values):
    record = {"step": "recalibrate", "by": "site", "split": "val", "needs": 1, "remark": "", "rejected": {}}
    trail = SimpleNamespace(after={"recalibrate/site/val": {**record, "sites": sites, **values}})
    (found,) = after_sections(trail, sorted(sites))
    return found


def test_what_holds_for_all_is_not_taken_from_the_first_site():
    found = section(
        {"a": {**SAID, "shared.slope": -50.0, "n_all": 0.0}, "b": SAID, "c": SAID},
        shared={"shared.slope": 1.5, "shared.intercept": 0.1, "n_all": 200.0},
    )
    assert found["shared"] == {"slope": 1.5, "intercept": 0.1} and found["note"] == ""


@pytest.mark.parametrize("shared", [{}, None, "forged"])
def test_without_the_servers_word_only_what_all_say_alike_is_shown(shared):
    """With secure sums, and in logs of before."""
    alike = {**SAID, "shared.intercept": 0.1 + 1e-12, "shared.brier": 0.25}
    assert section({"a": SAID, "b": alike}, shared=shared)["shared"] == {"slope": 1.5, "intercept": 0.1}
    liar = {name: value for name, value in SAID.items() if name != "n_all"} | {"shared.slope": -50.0}
    found = section({"a": liar, "b": SAID, "c": alike}, shared=shared)
    assert found["shared"] == {"intercept": 0.1}
    if not shared:
        assert "do not say the same of n_all and shared.slope" in found["note"]


def test_a_threshold_that_is_missing_is_said_by_the_sums():
    sites = {"a": {"n_all": 1e6, "n": 40.0}, "b": {"n_all": 150.0, "n": 40.0}}
    found = section(sites, shared={"n_all": 150.0}, needs=199, step="conformal")
    assert "all sites together need 199" in found["note"]
    assert section(sites, shared={"n_all": 0.0})["note"].startswith("Nothing was recalibrated: too few")
