# SPDX-License-Identifier: Apache-2.0
"""A folder from elsewhere, or one that says more of patients than a run needs, given to ``fairflare init``."""

import json

import numpy as np

import five_layouts
from fairflare.app.intake.found import Choices
from fairflare.app.intake.look import look
from fairflare.app.intake.write import contents


def folder_with_a_list(root, **more):
    """12 images of one site; ``more``: key -> what entry i says."""
    entries = []
    for i in range(12):
        five_layouts.save(root / f"{i}.png", np.full((28, 28), 20 * i))
        about = {key: say(i) for key, say in more.items()}
        entries.append({"image": f"{i}.png", "label": "xy"[i % 2], "sex": "fm"[i // 2 % 2], **about})
    (root / "site-1.json").write_text(json.dumps({"training": entries}))
    return root


def test_no_key_of_a_list_that_may_name_a_patient_becomes_a_group(tmp_path):
    """Groups and their values are settings of the task: they stand in the run's configuration and in jobs."""
    root = folder_with_a_list(
        tmp_path / "d",
        name=lambda i: f"Doe {i}",
        mrn=lambda i: 9000 + i,
        study_uid=lambda i: f"1.2.{i % 3}",
        age=lambda i: 30 + 5 * i,
    )
    proposal = look(root, Choices())
    files = contents(root, proposal.found, False)
    options = json.loads(files["dataset.json"])["options"]
    assert options["attribute_values"] == "sex=f|m; age_band=40 to 59|60 to 79|80 and over|under 40"
    text = "".join(files.values())
    assert "Doe" not in text and "900" not in text and "1.2." not in text
