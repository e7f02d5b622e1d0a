# SPDX-License-Identifier: Apache-2.0
"""A new field of the train answer is one line in core/schema.py of a copy of the package, and a part that fills it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = Path(__file__).with_name("counting.py")
BEFORE = "    tensors: Any = _field("
LINE = '    seen: Any = _field("count", "examples seen in training", required=True, low=1, high=1e6, audit=True)\n'
SCRIPT = """
import dataclasses, json, sys, torch
from pathlib import Path
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from leaving_tables import answer_table
from fairflare.engine.setup.assembly import build_site, leaves
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.config import make_config
from fairflare.core.types import Round
from fairflare.engine.audit import verify
from fairflare.engine.gate import Gate
from fairflare.core.schema import Instruction
from fairflare.flare.egress import META
from fairflare.flare.wire import answer_from_model, answer_to_shareable
from fairflare.core.errors import EgressRefused

folder = Path(sys.argv[1])
config = make_config("counting", "support2", rounds=1)
run_local(config, folder)
entry = next(e for e in verify(folder / "audit.jsonl") if e["event"] == "round")
parts = build_parts(config)
answer = build_site(config, parts, "site-1").handle(Instruction("train", Round(1, 1), parts.model))
arrived = answer_from_model(FLModelUtils.from_shareable(answer_to_shareable(answer)), site="site-1")
gate = Gate(parts.trainable, metrics=parts.metrics)
codes = []
for value in (None, 0, 1.5, 1e7):
    wrong = dataclasses.replace(answer, seen=value)
    codes += [r.code for r in gate.inspect([wrong], parts.model, 1, {}).rejections]
refused = []
for value in (0, 1.5, 1e7, float("nan"), "patient 17"):
    try:
        leaves(config, parts, 10).check("train", dataclasses.replace(answer, seen=value))
    except EgressRefused as refusal:
        refused.append(str(refusal))
print(json.dumps({
    "log": {site: reply["seen"] for site, reply in entry["accepted"].items()},
    "weights": entry["weights"], "sent": answer.seen, "arrived": arrived.seen, "meta": "seen" in META,
    "codes": codes, "refused": refused, "table": answer_table(),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the script says of a copy of the package whose schema has one line more."""
    place = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        ROOT / "custom" / "fairflare", place / "fairflare", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    schema = place / "fairflare" / "core" / "schema.py"
    text = schema.read_text()
    assert text.count(BEFORE) == 1
    schema.write_text(text.replace(BEFORE, LINE + BEFORE))
    (place / "run").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{place}{os.pathsep}{ROOT / 'tests' / 'docs'}",
        "FAIRFLARE_PLUGINS": str(PLUGIN),
    }
    command = [sys.executable, "-c", SCRIPT, str(place / "run")]
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_it_reaches_rule_and_log(found):
    total = sum(found["log"].values())
    assert set(found["log"]) == set(found["weights"]) and total > 100
    for site, seen in found["log"].items():
        assert found["weights"][site] == pytest.approx(seen / total)


def test_flares_messages_carry_it(found):
    assert found["arrived"] == found["sent"] > 0 and found["meta"]


def test_gate_and_egress_refuse_wrong_values(found):
    assert found["codes"] == ["seen"] * 4
    assert len(found["refused"]) == 5 and not any("17" in text for text in found["refused"])


def test_the_security_table_has_its_row(found):
    assert "| `seen` | train | whole number, 1 to 1e+06 | in the clear | examples seen in training |" in found["table"]
