# SPDX-License-Identifier: Apache-2.0
"""Messages between processes of one run: any tensor arrives as it was."""

import gc
import socket
import threading

import pytest
import torch

from fairflare.core.errors import DataError, MissingData
from fairflare.core.workers import SIZE, Channel, pack, portable

LARGE = 500
"""Entries of a tensor whose message the buffer of a socket holds."""


@pytest.fixture
def ends():
    here, there = map(Channel, socket.socketpair())
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize("n", [3, LARGE])
def test_tensors_arrive_as_they_were(n, ends):
    images = torch.randn(2, 3, 4, n).contiguous(memory_format=torch.channels_last)
    sent = {"float": torch.randn(n, 3), "half": torch.randn(n).bfloat16(), "whole": torch.arange(n)}
    sent |= {"scalar": torch.tensor(7), "empty": torch.empty(0, n), "yes": torch.ones(n) > 0}
    sent |= {"turned": torch.randn(4, n).t(), "images": images, "part": torch.randn(100, n)[::7, 1:]}
    ends[0].send(("kind", sent))
    kind, found = ends[1].receive()
    assert kind == "kind" and found.keys() == sent.keys()
    for name, value in sent.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        assert torch.equal(found[name], value), name
        assert found[name].data_ptr() % 64 == 0, name  # some kernels round by the alignment
    assert found["images"].stride() == images.stride() and found["turned"].stride() == sent["turned"].stride()


def test_one_tensor_under_two_names_is_sent_once():
    one = torch.randn(LARGE)
    assert len(pack({"a": one, "b": one})) < 0.6 * len(pack({"a": one, "b": one.clone()}))


def test_what_the_receiver_changes_is_its_own(ends):
    model = {"w": torch.zeros(LARGE)}
    packed = pack(model)
    ends[0].send_packed(packed)
    ends[0].send_packed(packed)
    first, second = ends[1].receive(), ends[1].receive()
    first["w"].add_(1)
    assert not second["w"].any() and not model["w"].any()


def test_the_sender_changes_nothing_that_was_sent(ends):
    model = {"w": torch.zeros(LARGE)}
    ends[0].send(model)
    model["w"].add_(1)
    assert not ends[1].receive()["w"].any()


def test_tensors_outlive_message_and_channel():
    here, there = map(Channel, socket.socketpair())
    here.send({"w": torch.arange(LARGE)})
    found = there.receive()["w"]
    here.close()
    there.close()
    gc.collect()
    assert torch.equal(found, torch.arange(LARGE))


def test_what_no_buffer_holds_arrives_as_it_is_read(ends):
    sent = ("x" * 10**6, b"y" * 10**6, torch.arange(10**6))
    sender = threading.Thread(target=ends[0].send, args=(sent,))
    sender.start()
    text, data, tensor = ends[1].receive()
    sender.join()
    assert (text, data) == sent[:2] and torch.equal(tensor, sent[2])


def test_a_closed_end_is_the_end_of_the_file(ends):
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()


def test_a_message_cut_short_is_the_end_of_the_file():
    here, there = socket.socketpair()
    here.sendall(SIZE.pack(len(pack("half"))) + pack("half")[:5])
    here.close()
    with pytest.raises(EOFError):
        Channel(there).receive()
    there.close()


class Odd(Exception):
    """Cannot be made from its text, nor by what Dask teaches pickle of exceptions."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")

    def __reduce__(self):
        return type(self), (str(self),)


@pytest.mark.parametrize(
    "error", [DataError("unreadable", "no file"), MissingData("no folder", "a tree"), KeyError("w")]
)
def test_exceptions_travel(error):
    copy, text = portable(error)
    assert type(copy) is type(error) and str(copy) == str(error) and vars(copy) == vars(error)
    assert str(error) in text


def test_an_exception_that_cannot_travel_is_put_into_words():
    copy, _ = portable(Odd("a", "b"))
    assert type(copy) is RuntimeError and str(copy) == "Odd: a b"
