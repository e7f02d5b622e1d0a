# SPDX-License-Identifier: Apache-2.0
"""A job without code names things in its options: none of them may run code, open a path or take all memory."""

import http.server
import importlib
import inspect
import json
import pickle
import sys
import threading
import tracemalloc

import pytest
from torch import nn

from cases import each
from fairflare.core import user_code
from fairflare.core.errors import DataError, UserError
from fairflare.networks import monai_networks
from fairflare.networks import own as own_network

NETS = "monai.networks.nets"
PLAIN = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
STAGES = {"channels": [4, 8], "strides": [2]}
A_CLASS = (inspect.isclass, "a class")

OWN_FILE = """
import os, subprocess
from os import system
from torch import nn
from torch.hub import load_state_dict_from_url
from fairflare.cli.main import main


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, x):
        return self.head(x.mean((1, 2, 3))[:, None])


def build_data(own):
    raise FileNotFoundError


made = Net()
"""


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch):
    monkeypatch.setenv(user_code.VARIABLE, "")
    monkeypatch.setattr(user_code, "_vouched", [])
    yield
    for name in ("own_file", "fairflare_helper"):
        sys.modules.pop(name, None)


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """A site's ``local/custom`` with a file of its own beside the installed package."""
    custom = tmp_path / "custom"
    (custom / "fairflare").mkdir(parents=True)
    (custom / "fairflare" / "__init__.py").write_text("")
    (custom / "own_file.py").write_text(OWN_FILE)
    monkeypatch.syspath_prepend(custom)
    user_code.vouch([custom])


def model(name, **args):
    return json.dumps({"class_path": name, "args": args})


class Owned:
    """A pickle that writes a file when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (self.marker, "w")


@pytest.fixture
def pickle_server(tmp_path):
    """A URL of such a pickle on this machine, and the list of requests that came."""
    content, asked = pickle.dumps(Owned(str(tmp_path / "marker"))), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/weights.pth", asked
        server.shutdown()
        thread.join(5)


def test_the_loader_that_monais_modules_import_downloads_and_unpickles_nothing(pickle_server, tmp_path):
    url, asked = pickle_server
    args = {"url": url, "model_dir": str(tmp_path / "hub"), "weights_only": False}
    for name in (f"{NETS}.densenet.load_state_dict_from_url", f"{NETS}.senet.load_state_dict_from_url"):
        with pytest.raises(UserError, match="^model: expected a network that monai.networks.nets defines, got"):
            own_network.build(model(name, **args), (1, 32, 32), (2,))
    assert not asked and not (tmp_path / "marker").exists() and not (tmp_path / "hub").exists()


FORBIDDEN = [
    f"{NETS}.resnet.download_url",
    f"{NETS}.resnet.optional_import",
    f"{NETS}.transchex.cached_file",
    f"{NETS}.efficientnet.model_zoo.load_url",
    f"{NETS}.dints.warnings.warn",
    f"{NETS}.densenet.re.compile",
    f"{NETS}.densenet.nn.Linear",
    f"{NETS}.resnet.resnet18",
    f"{NETS}.resnet.ResNetFeatures",
    f"{NETS}.TorchVisionFCModel",
    f"{NETS}.Transchex",
    f"{NETS}.MILModel",
    f"{NETS}.unet.DenseNet121",
    f"{NETS}.UNet.__init__",
    f"{NETS}.__dict__",
    f"{NETS}.__loader__.load_module",
    f"{NETS}..UNet",
    f"{NETS}.UNet ",
    f" {NETS}.UNet",
    NETS,
    "monai",
    "monai.bundle.download",
    "monai.utils.optional_import",
    "monai.bundle.ConfigComponent",
    "monai.networks.nets2.UNet",
    "pydoc.locate",
    "os.system",
    "subprocess.Popen",
    "builtins.eval",
    "torch.load",
    "torch.hub.load",
    "torch.nn.Linear",
    "nvflare.cli.main",
    "fairflare.cli.main.main",
    "fairflare.networks.builtin.UNet",
    "fairflare.__main__",
    "__main__.Owned",
    "own_file.os.system",
    "own_file.system",
    "own_file.subprocess.Popen",
    "own_file.load_state_dict_from_url",
    "own_file.main",
    "own_file.nn.Linear",
    "own_file.Net.__init__",
    "own_file.__builtins__",
    "own_file.__loader__.exec_module",
    "own_file.build_data",
    "own_file.made",
    "own_file.",
    ".own_file.Net",
    "own_file/Net",
    "../own_file.Net",
    "own_file",
    "",
    "ο_file.Net",
    "a." * 50_000 + "b",
]


@each("name", FORBIDDEN, ids=lambda name: name[:60] or "empty")
def test_nothing_else_can_be_named_as_a_network(name, declared):
    with pytest.raises(UserError, match="^model: ") as refused:
        own_network.build(model(name), (1, 32, 32), (2,))
    assert len(str(refused.value)) < 1000 and "\n" not in str(refused.value)


def test_what_a_declared_file_defines_can_be_named(declared):
    assert own_network.build(model("own_file.Net"), (1, 8, 8), (2,))


def test_a_module_below_a_vouched_folder_is_not_in_it(tmp_path, monkeypatch):
    """As site-packages of an environment that somebody put into the folder."""
    inner = tmp_path / "custom" / "env" / "lib"
    inner.mkdir(parents=True)
    (inner / "own_file.py").write_text(OWN_FILE)
    monkeypatch.syspath_prepend(inner)
    user_code.vouch([tmp_path / "custom"])
    with pytest.raises(UserError, match="none of your files"):
        user_code.load_object("own_file.Net", "model", *A_CLASS)


def test_fingerprints_of_a_job_look_at_declared_modules_only(declared, tmp_path, monkeypatch):
    """What else is installed neither runs nor is compared: the answer would tell the job whether it is there."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "fairflare_helper").mkdir(parents=True)
    (elsewhere / "fairflare_helper" / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (elsewhere / "fairflare_helper" / "part.py").write_text("")
    monkeypatch.syspath_prepend(elsewhere)
    for name in ("fairflare_helper", "fairflare_helper.part", "json", "os", "", ".", "__main__"):
        with pytest.raises(DataError, match="which is not here"):
            user_code.check({name: "0" * 64})
    assert not (tmp_path / "ran").exists()
    with pytest.raises(DataError, match="not the one that the run was made with"):
        user_code.check({"own_file": "0" * 64})


UNFIT = [
    ("DenseNet121", {"pretrained": True}, "pretrained: expected false, got True"),
    ("DenseNet121", {"progress": True}, "unknown argument 'progress'"),
    ("EfficientNetBN", {"model_name": "../../x"}, "model_name: expected"),
    ("FlexibleUNet", {"backbone": "os.system"}, "backbone: expected"),
    ("SwinUNETR", {"norm_layer": "LayerNorm"}, "unknown argument 'norm_layer'"),
    ("SwinUNETR", {"downsample": "os.system"}, "downsample: expected"),
    ("SegResNetDS", {"preprocess": "system"}, "unknown argument 'preprocess'"),
    ("HighResNet", {"layer_params": [{"name": "conv_0"}]}, "unknown argument 'layer_params'"),
    ("UNet", {"act": "os.system"}, "act: expected"),
    ("UNet", {"act": ["relu", {"inplace": "a b"}]}, "act: expected"),
    ("UNet", {"norm": ["group", {"num_groups": 10**9}]}, "norm: expected"),
    ("UNet", {"norm": {"class_path": "os.system"}}, "norm: expected"),
    ("UNet", {"in_channels": -1}, "in_channels: expected"),
    ("UNet", {"in_channels": 10**400}, "got 1000"),
    ("UNet", {"channels": [4] * 17}, "channels: expected"),
    ("UNet", {"channels": [[[[4]]]]}, "channels: expected"),
    ("UNet", {"dropout": float("nan")}, "got nan"),
    ("UNet", {"dropout": float("inf")}, "got inf"),
    ("UNet", {"self": 1}, "unknown argument 'self'"),
    ("UNet", {"__class__": 1}, "unknown argument '__class__'"),
    ("UNet", {"x" * 10_000: 1}, "unknown argument"),
    ("FullyConnectedNet", {"hidden_channels": [10**12]}, "hidden_channels: expected"),
]


@each("name, args, text", UNFIT, ids=lambda v: v if isinstance(v, str) else None)
def test_an_argument_that_is_unknown_or_not_plain_is_refused(name, args, text):
    with pytest.raises(UserError) as refused:
        monai_networks.checked(f"{NETS}.{name}", args)
    assert str(refused.value).startswith(f"model: {name}: ") and text in str(refused.value)
    assert len(str(refused.value)) < 900


WRONG = [{"in_channels": 0}, {"in_channels": 1.5}, {"in_channels": "one"}, {"spatial_dims": 4}, {"channels": []}]


@each("args", WRONG)
def test_a_plain_argument_that_does_not_fit_is_one_line(args):
    with pytest.raises(UserError, match="^model: monai.networks.nets.UNet failed on two examples"):
        own_network.build(model(f"{NETS}.UNet", **PLAIN | STAGES | args), (1, 32, 32), (2, 32, 32))


@each("text", ["[" * 100_000, '{"class_path":' * 2000 + "1", "{}", '{"class_path": 3}', "{" + "9" * 5000])
def test_json_that_is_no_class_is_one_line(text):
    with pytest.raises(UserError, match="^model: ") as refused:
        own_network.check_model(text, ("small-cnn",))
    assert "\n" not in str(refused.value)


HUGE = [
    ("UNet", {**PLAIN, "spatial_dims": 3, "channels": [8192] * 8, "strides": [1] * 7, "kernel_size": 9}),
    ("Classifier", {"in_shape": [2048, 4096, 4096], "classes": 2048, **STAGES}),
    ("Regressor", {"in_shape": [1, 4096, 4096, 4096], "out_shape": [4096] * 4, "channels": [2048], "strides": [1]}),
    ("ResNet", {"block": "bottleneck", "layers": [64] * 4, "block_inplanes": [2048] * 4, "spatial_dims": 3}),
]


@pytest.mark.parametrize("name, args", HUGE, ids=[name for name, _ in HUGE])
def test_a_network_of_any_size_that_the_ranges_let_through_is_stopped_before_it_is_there(name, args):
    with pytest.raises(UserError, match="expected at most 150,000,000 parameters, got more|allocate memory|overflowed"):
        own_network.build(model(f"{NETS}.{name}", **args), (1, 32, 32), (2,))
    assert not nn.modules.module._global_parameter_registration_hooks, "the next network is not counted"


SMALL = {
    "AttentionUnet": {**PLAIN, **STAGES},
    "BasicUNet": {**PLAIN, "features": [4, 4, 8, 8, 8, 4], "norm": "batch"},
    "Classifier": {"in_shape": [1, 32, 32], "classes": 2, **STAGES},
    "DenseNet": {**PLAIN, "init_features": 8, "growth_rate": 4, "block_config": [2, 2]},
    "DenseNet121": {**PLAIN, "init_features": 8, "growth_rate": 4, "block_config": [2, 2], "pretrained": False},
    "DynUNet": {**PLAIN, "kernel_size": [3, [3, 3], 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]},
    "FlexibleUNet": {**PLAIN, "backbone": "resnet10", "decoder_channels": [8, 8, 8, 8, 8]},
    "FullyConnectedNet": {"in_channels": 5, "out_channels": 2, "hidden_channels": [8], "act": "relu"},
    "HighResNet": {**PLAIN, "norm_type": "instance", "acti_type": ["leakyrelu", {"negative_slope": 0.1}]},
    "Regressor": {"in_shape": [1, 32, 32], "out_shape": [2], **STAGES},
    "ResNet": {
        "block": "basic",
        "layers": [1, 1, 1, 1],
        "block_inplanes": [4, 4, 8, 8],
        "spatial_dims": 2,
        "n_input_channels": 1,
        "num_classes": 2,
    },
    "SEResNet50": {"spatial_dims": 2, "in_channels": 1, "num_classes": 2, "layers": [1, 1, 1, 1], "inplanes": 8},
    "SegResNet": {**PLAIN, "init_filters": 4, "norm": ["GROUP", {"num_groups": 2}]},
    "SegResNetDS": {**PLAIN, "init_filters": 4, "blocks_down": [1, 1]},
    "UNet": {**PLAIN, **STAGES, "norm": ["group", {"num_groups": 2}], "act": "PRELU", "num_res_units": 1},
}


@each("name", SMALL)
def test_networks_on_the_list_can_be_built_by_either_name(name):
    file = monai_networks.NETWORKS[name]
    inputs = (5,) if name == "FullyConnectedNet" else (1, 32, 32)
    outputs = (2, 32, 32) if "UN" in name.upper() or name.startswith(("Seg", "HighRes")) else (2,)
    found = {type(own_network.build(model(dotted, **SMALL[name]), inputs, outputs)) for dotted in (
        f"{NETS}.{name}", f"{NETS}.{file}.{name}"
    )}  # fmt: skip
    assert {cls.__module__ for cls in found} == {f"{NETS}.{file}"}


def test_what_the_list_lets_through_names_no_code_and_downloads_nothing():
    for name, file in monai_networks.NETWORKS.items():
        cls = getattr(importlib.import_module(f"{NETS}.{file}"), name)
        assert issubclass(cls, nn.Module) and cls.__module__ == f"{NETS}.{file}"
        allowed = monai_networks._parameters(cls)
        risky = {"url", "weights", "file", "module", "callable", "params", "preprocess"}
        assert not [key for key in allowed if risky & set(key.split("_"))]
        pretrained = {"pretrained"} & set(inspect.signature(cls.__init__).parameters)
        assert monai_networks.checked(f"{NETS}.{name}", {}) == (name, dict.fromkeys(pretrained, False))


def test_a_refused_network_takes_no_memory():
    tracemalloc.start()
    with pytest.raises(UserError):
        monai_networks.checked(f"{NETS}.UNet", {"channels": [2**30] * 8})
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
