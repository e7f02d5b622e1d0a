# SPDX-License-Identifier: Apache-2.0
"""A table's JSON options in a job: without a brace that FLARE would take for a variable, and read back as they were."""

import json

import pytest

from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.flare.paths import escaped, unescaped

SCALING = json.dumps({"fill": [1.0], "mean": [0.5], "std": [2.0]})
COLUMNS = json.dumps({"stage": {"kind": "category", "levels": ["50%", "a{b}", "%7B", "path"]}})


def test_columns_and_scaling_travel_without_braces():
    values = {"site_names": "a,b", "features": "age,stage", "columns": COLUMNS, "scaling": SCALING}
    content = make_config("fedavg", "tabular:default", values=values).to_json()
    carried = escaped(content)
    text = json.dumps(carried["options"])
    assert not {"{", "}"} & set(text[1:-1]) and carried["options"].keys() == content["options"].keys()
    assert unescaped(carried) == content and RunConfig.from_json(unescaped(carried)) == RunConfig.from_json(content)


@pytest.mark.parametrize("content", [None, 3, [], {"options": 3}, {"options": {"columns": 7}}])
def test_what_is_no_configuration_stays(content):
    assert unescaped(content) == content
