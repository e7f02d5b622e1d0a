# SPDX-License-Identifier: Apache-2.0
"""Tensors that FLARE has put on the server's disk: checked before they are read, and read one at a time."""

import json
import struct

import pytest
import torch
from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR as ROOT
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from nvflare.fuel.utils.fobs import FOBSContextKey
from safetensors.torch import save

from cases import each
from fairflare.core.schema import Answer
from fairflare.core.tensor_files import Entries, Stored
from fairflare.engine.gate import Gate
from fairflare.flare.controller import in_files, offloaded

MODEL = {"w": torch.zeros(700, 500), "b": torch.zeros(3), "bn.running_var": torch.ones(4), "n": torch.tensor(1)}
GATE = Gate(frozenset({"w", "b"}))


def update(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {k: torch.rand(v.shape, generator=draw) * 0.1 for k, v in MODEL.items() if v.is_floating_point()}


def arrived(folder, tensors, rewrite=lambda data: data):
    """What FLARE hands over of ``tensors``: references into files below ``folder``, as its download writes them."""
    message = folder / f"nvflare_tensors_{len(list(folder.iterdir()))}"
    message.mkdir()
    places = {}
    for k, (key, value) in enumerate(tensors.items()):
        file = message / f"chunk_{k}.safetensors"
        file.write_bytes(rewrite(save({f"T{k}": value})))
        places[key] = (str(file), f"T{k}")
    held = LazyTensorDict(places, str(message))
    return {key: held.make_lazy_ref(key) for key in places}


def answer(folder, refs, site="site-1"):
    return in_files(Answer(site, 1, refs, n_examples=5, steps=1), folder)


def test_what_lies_in_files_is_accepted_unread_and_makes_the_same_model(tmp_path):
    sent = update()
    verdict = GATE.inspect([answer(tmp_path, arrived(tmp_path, sent))], MODEL, 1, {})
    plain = GATE.inspect([Answer("site-1", 1, sent, n_examples=5, steps=1)], MODEL, 1, {})
    (reply,) = verdict.replies
    assert isinstance(reply.update, Entries) and all(isinstance(one, Stored) for one in reply.update.held.values())
    assert all(torch.equal(reply.update[key], sent[key]) for key in sent) and list(reply.update) == list(sent)
    assert verdict.norms == plain.norms
    assert torch.equal(reply.update.part("w", slice(1000, 2000)), sent["w"].view(-1)[1000:2000])


def test_the_files_go_with_the_last_who_holds_them(tmp_path):
    found = answer(tmp_path, arrived(tmp_path, update()))
    assert list(tmp_path.iterdir())
    del found
    assert not list(tmp_path.iterdir())


def test_a_reference_that_leads_elsewhere_is_not_followed(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir(), outside.mkdir()
    refs = arrived(outside, update())
    link = inside / "link"
    link.symlink_to(refs["b"].file_path)
    refs["b"].file_path = str(link)
    found = answer(inside, refs)
    assert set(found.update.values()) == {None}
    assert [r.code for r in GATE.inspect([found], MODEL, 1, {}).rejections] == ["dtype"]


@pytest.mark.parametrize("when", ["before it was described", "before the gate"])
def test_a_file_that_vanishes_is_a_rejection(when, tmp_path):
    refs = arrived(tmp_path, update())
    found = answer(tmp_path, refs) if when == "before the gate" else None
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    found = found or answer(tmp_path, refs)
    good = Answer("site-2", 1, update(), n_examples=5, steps=1)
    verdict = GATE.inspect([found, good], MODEL, 1, {})
    assert [r.site for r in verdict.replies] == ["site-2"]
    assert verdict.rejections[0].code in ("dtype", "malformed") and str(tmp_path) not in verdict.rejections[0].detail


def header(change):
    """Rewrites a file's header."""

    def rewrite(data):
        (length,) = struct.unpack("<Q", data[:8])
        fields = json.loads(data[8 : 8 + length])
        (entry,) = fields.values()
        change(entry)
        text = json.dumps(fields).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return rewrite


FORGED = {
    "a shape of another size": header(lambda entry: entry.update(shape=[10**6, 10**6])),
    "a negative shape": header(lambda entry: entry.update(shape=[-1, -3])),
    "no shape": header(lambda entry: entry.pop("shape")),
    "a place behind the end": header(lambda entry: entry.update(data_offsets=[10**9, 10**9 + 12])),
    "a place before the begin": header(lambda entry: entry.update(data_offsets=[-20, -8])),
    "fractions": header(lambda entry: entry.update(data_offsets=[0.5, 12.5])),
    "an unknown type": header(lambda entry: entry.update(dtype="Q7")),
    "a header of any length": lambda data: struct.pack("<Q", 2**63) + data[8:],
    "no header": lambda data: b"abc",
    "no JSON": lambda data: data[:8] + b"x" * (len(data) - 8),
    "nested without end": lambda data: struct.pack("<Q", 200_000) + b"[" * 200_000,
    "a list": lambda data: struct.pack("<Q", 2) + b"[]",
}


@each("forged", FORGED)
def test_a_header_that_does_not_hold_together_is_a_rejection(forged, tmp_path):
    sent = {key: torch.zeros(3) for key in update()}
    found = answer(tmp_path, arrived(tmp_path, sent, FORGED[forged]))
    assert set(found.update.values()) == {None}
    assert [r.site for r in GATE.inspect([found], MODEL, 1, {}).rejections] == ["site-1"]


@pytest.mark.parametrize(
    "code, entry",
    [
        ("shape", torch.zeros(500, 700)),
        ("dtype", torch.zeros(700, 500, dtype=torch.int64)),
        ("nonfinite", torch.full((700, 500), torch.nan)),
    ],
)
def test_a_wrong_entry_is_refused_with_its_code(code, entry, tmp_path):
    sent = answer(tmp_path, arrived(tmp_path, update() | {"w": entry}))
    assert [r.code for r in GATE.inspect([sent], MODEL, 1, {}).rejections] == [code]


def test_half_precision_on_disk_is_cast_where_it_is_read(tmp_path):
    sent = {key: value.half() for key, value in update().items()}
    (reply,) = GATE.inspect([answer(tmp_path, arrived(tmp_path, sent))], MODEL, 1, {}).replies
    assert all(reply.update[key].dtype == torch.float32 for key in sent)
    assert torch.equal(reply.update.part("w", slice(5, 9)), sent["w"].view(-1)[5:9].float())


class Cell:
    """The part of FLARE's cell that holds the switch."""

    def __init__(self):
        self.context = {"other": 1}

    def get_fobs_context(self):
        return self.context

    def update_fobs_context(self, values):
        self.context.update(values)


class Engine:
    """An engine with the cell of its own, and the simulator's second one."""

    def __init__(self):
        self.own = Cell()
        self.server = type("Server", (), {"job_cell": Cell()})()

    def get_cell(self):
        return self.own


def test_both_cells_are_switched_and_left_as_they_were(tmp_path):
    engine = Engine()
    with pytest.raises(RuntimeError), offloaded(engine, tmp_path) as root:
        for cell in (engine.own, engine.server.job_cell):
            assert cell.context[FOBSContextKey.TENSOR_DISK_OFFLOAD] is True and cell.context[ROOT] == str(root)
        (root / "left").mkdir()
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    for cell in (engine.own, engine.server.job_cell):
        assert not cell.context[FOBSContextKey.TENSOR_DISK_OFFLOAD] and cell.context[ROOT] is None
