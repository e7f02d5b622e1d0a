# SPDX-License-Identifier: Apache-2.0
"""FLARE's own FedAvgRecipe with our aggregator handed to it, in FLARE's simulator."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
JOB = """
import sys
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from fairflare.flare.aggregator import FairAggregator
from tiny_net import TinyNet

recipe = FedAvgRecipe(
    name="stock", model=TinyNet(), min_clients=2, num_rounds=2, train_script="client_api_script.py",
    aggregator=FairAggregator("fedism", rounds=2, settings={"q": 1.0, "beta": 1.0}),
    params_transfer_type="DIFF", server_expected_format="pytorch",
)
recipe.run(SimEnv(clients=["site-1", "site-2"], workspace_root=sys.argv[1]))
"""


@pytest.mark.flare
def test_stock_recipe_weighs_by_sharpness(tmp_path):
    """Sharpness .01 and .03 with q = 1 weigh 1/4 and 3/4: steps of 1 and 3 move every weight by 2.5 a round."""
    for name in ("client_api_script.py", "tiny_net.py"):
        (tmp_path / name).write_text((HERE / name).read_text())
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "job.py", str(tmp_path / "ws")], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    server = tmp_path / "ws" / "stock" / "server" / "simulate_job"
    saved = torch.load(next(server.glob("**/FL_global_model.pt")), weights_only=True)["model"]
    log = (tmp_path / "ws" / "stock" / "server" / "log.txt").read_text()
    weights = json.loads(re.search(r"round 2 weights: (\{.*\})", log).group(1).replace("'", '"'))
    assert weights == pytest.approx({"site-1": 0.25, "site-2": 0.75})
    running_mean = torch.as_tensor(saved["1.running_mean"])
    torch.testing.assert_close(running_mean, torch.full((2,), 5.0))
    assert int(saved["1.num_batches_tracked"]) == 0
