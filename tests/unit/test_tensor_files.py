# SPDX-License-Identifier: Apache-2.0
"""Files of tensors: whatever a run keeps comes back bit for bit, and what the file says is what every reader finds."""

import io
import json
import math
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fairflare.core import tensor_files
from fairflare.core.errors import UserError
from fairflare.core.tensor_files import file_types, read, read_with_header, write
from fairflare.engine.hashes import state_hash

PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5))
TENSOR = st.builds(
    lambda dtype, shape, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.sampled_from(sorted(file_types().values(), key=str)),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
KEY = st.one_of(st.text(max_size=4), st.integers(-3, 3), st.sampled_from(["a/b", "a", "b", "__metadata__", "\ud800"]))
CONTENT = st.recursive(
    st.one_of(PLAIN, TENSOR),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEY, inner, max_size=4)
    ),
    max_leaves=12,
)


def back(content, path):
    with path.open("wb") as file:
        write(file, content)
    return read(path)


def types(value):
    """The kinds of all values, in order."""
    if isinstance(value, dict):
        return dict, [(key, types(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types(item) for item in value]
    return type(value), getattr(value, "dtype", None), getattr(value, "shape", None)


@settings(max_examples=200, deadline=None)
@given(content=CONTENT)
def test_content_comes_back_bit_for_bit(content, tmp_path_factory):
    found = back(content, tmp_path_factory.getbasetemp() / "any.safetensors")
    assert types(found) == types(content)
    assert state_hash({"x": found}) == state_hash({"x": content})


def test_numbers_keep_their_bits(tmp_path):
    odd = [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf]
    found = back([*odd, math.nan], tmp_path / "x.safetensors")
    assert [struct.pack("d", x) for x in found[:-1]] == [struct.pack("d", x) for x in odd] and math.isnan(found[-1])
    payloads = torch.tensor([0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32)
    (same,) = back([payloads], tmp_path / "x.safetensors")
    assert torch.equal(same.view(torch.int32), payloads.view(torch.int32))


def test_a_state_dict_is_one_for_every_reader(tmp_path):
    tied = torch.randn(3, 2)
    model = {"z.weight": tied, "a.weight": tied, "n": torch.tensor(7), "bn.mean": torch.zeros(5, dtype=torch.float64)}
    found = back(model, tmp_path / "m.safetensors")
    others = load_file(tmp_path / "m.safetensors")
    assert list(found) == list(model) and set(others) == set(model)
    assert all(torch.equal(others[key], model[key]) and torch.equal(found[key], model[key]) for key in model)


def test_the_same_tensor_in_two_places_is_there_once(tmp_path):
    model = {"w": torch.randn(1000)}
    found = back({"models": {"a": model, "b": model, "c": {"w": model["w"][:500]}}}, tmp_path / "x.safetensors")
    assert (tmp_path / "x.safetensors").stat().st_size < 8000
    assert found["models"]["a"]["w"] is found["models"]["b"]["w"] and len(found["models"]["c"]["w"]) == 500


def test_views_and_parameters_are_written_as_they_look(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    found = back([base.T, base[1:, ::2], torch.nn.Parameter(base)], tmp_path / "x.safetensors")
    assert torch.equal(found[0], base.T) and torch.equal(found[1], base[1:, ::2])
    assert type(found[2]) is torch.Tensor and not found[2].requires_grad


def test_what_is_read_lies_where_torch_puts_it_and_outlives_the_file(tmp_path):
    found = back([torch.ones(3, dtype=torch.uint8), torch.randn(1 << 16)], tmp_path / "x.safetensors")
    with (tmp_path / "x.safetensors").open("r+b") as file:
        file.truncate(10)
    assert found[1].data_ptr() % 64 == 0 and float(found[1].sum()) == float(found[1].sum())


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path, monkeypatch):
    path, other, opened = tmp_path / "x.safetensors", tmp_path / "other", tensor_files.safe_open
    with other.open("wb") as file:
        write(file, [2, torch.full((3,), 2.0)])

    def replacing(name, **how):
        other.replace(path)
        return opened(name, **how)

    monkeypatch.setattr(tensor_files, "safe_open", replacing)
    number, tensor = back([1, torch.ones(3)], path)
    assert number == 1 and tensor.tolist() == [1, 1, 1] and not other.exists()


@pytest.mark.parametrize(
    "wrong", [{1, 2}, b"x", object(), torch.zeros(2).to_sparse(), torch.zeros(2, dtype=torch.cfloat)]
)
def test_nothing_else_is_written(wrong):
    with pytest.raises(TypeError, match="cannot hold"):
        write(io.BytesIO(), {"x": wrong})


def test_no_header_is_written_that_nobody_reads(monkeypatch):
    monkeypatch.setattr(tensor_files, "LONGEST_HEADER", 500)
    with pytest.raises(ValueError, match="at most 500 bytes"):
        write(io.BytesIO(), {str(k): torch.zeros(1) for k in range(20)})


def test_another_programs_file_is_tensors_by_name(tmp_path):
    model = {"b": torch.ones(2), "a": torch.zeros(3, dtype=torch.bfloat16)}
    save_file(model, tmp_path / "x.safetensors", metadata={"source": "elsewhere"})
    found, about = read_with_header(tmp_path / "x.safetensors")
    assert set(found) == set(model) and all(torch.equal(found[key], model[key]) for key in model)
    assert about == {"source": "elsewhere"}


def test_a_small_file_does_not_become_a_large_one(tmp_path):
    shared = torch.zeros(1000)
    content = {"x": [shared] * 200}
    with pytest.raises(UserError, match="larger than the file"):
        back(content, tmp_path / "x.safetensors")
    assert len(back({"x": [shared] * 60}, tmp_path / "x.safetensors")["x"]) == 60


def test_what_is_no_file_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for name, words in (
        ("pipe", "something else"),
        ("folder", "something else"),
        ("loop", "cannot be"),
        ("no", "cannot be"),
    ):
        with pytest.raises(UserError, match=f"{name}: .*{words}"):
            read(tmp_path / name)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_one_line_or_another_content(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    content = {
        "round": 2,
        "model": {"w": torch.randn(4, 3), "n": torch.tensor(3)},
        "state": {"x": [1.5, None, {"k": (2,)}]},
    }
    back(content, path)
    whole = path.read_bytes()
    where = data.draw(st.integers(0, len(whole) - 1))
    new, gone = data.draw(st.binary(max_size=6)), data.draw(st.sampled_from([0, 1, 8, 10**9]))
    path.write_bytes(whole[:where] + new + whole[where + gone :])
    try:
        read(path)
    except UserError as error:
        assert str(error).startswith("changed.safetensors: ") and "\n" not in str(error)


def test_entries_begin_where_their_type_may(tmp_path):
    back({"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(2, dtype=torch.float64)}, tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0 and header["b"]["data_offsets"][0] % 8 == 0 and header["a"]["data_offsets"] == [16, 19]
