# SPDX-License-Identifier: Apache-2.0
"""Secure sums: exact, order-free, the same whatever the masks, and no single number in reach of the server."""

import dataclasses
import math
import random
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch

from cases import each
from fairflare.privacy.secure_sums import LARGEST, SIZE, STEP, MaskedSums, combine, mask_update
from fairflare.privacy.sum_keys import BLOCK, TAG, PairwiseKeys, new_buffer, verified
from fairflare.privacy.sum_protocol import Rosters, SumOrder, SumRefused, fingerprint
from fairflare.privacy.sum_total import combine_updates

RUN = "a run"
VALUES = {"a": [0.1, 5e-324, 1e308], "b": [0.2, 1.0, 0.0], "c": [0.3, 1e-300, 7e307], "d": [1e-20, 3.0, 0.5]}


class Member:
    """A site's keys, its numbers' scheme and the rosters that it agrees to."""

    def __init__(self, name, context=RUN, identity=None):
        self.keys, self.rosters = PairwiseKeys(name, context, identity), Rosters(name)

    def statement(self):
        return self.keys.statement()

    def seal(self, values, order):
        self.keys.check(order)
        self.rosters.admit(order)
        return MaskedSums(self.keys).seal(values, order)


def members(names="abcd", context=RUN):
    return {name: Member(name, context) for name in names}


def order(sites, names=None, round=1, attempt=0):
    chosen = names if names is not None else sites
    return SumOrder(round, attempt, {name: sites[name].statement() for name in chosen})


def sealed(sites, one):
    return {name: sites[name].seal(VALUES[name], one)["sum"] for name in one.roster}


def expected(names="abcd"):
    return [float(sum(Fraction(VALUES[name][i]) for name in names)) for i in range(3)]


def test_the_sum_is_exact_from_the_smallest_double_to_the_largest():
    sites = members()
    messages = sealed(sites, order(sites))
    assert combine(list(messages.values())) == expected()
    assert all(len(m) == 3 * SIZE + 3 * TAG for m in messages.values())


def test_the_sum_is_the_same_with_other_keys_and_in_any_order():
    first, second = members(), members()
    one, two = sealed(first, order(first)), sealed(second, order(second))
    assert one != two
    shuffled = list(two.values())
    random.Random(3).shuffle(shuffled)
    assert combine(list(one.values())) == combine(shuffled) == expected()


@pytest.mark.parametrize("missing", "abcd")
def test_all_but_one_message_say_nothing(missing):
    """Whoever lacks one site's message gets numbers that cannot be doubles, whichever site it is."""
    sites = members()
    messages = sealed(sites, order(sites))
    del messages[missing]
    with pytest.raises(SumRefused, match="do not cancel"):
        combine(list(messages.values()))


def test_a_message_looks_the_same_whatever_is_in_it():
    """Bits of the messages for 0 and for 1e308, over 64 runs of the protocol: each set about half the time."""
    counts = []
    for value in (0.0, 1e308):
        ones = [0] * (8 * SIZE)
        for _ in range(64):
            sites = members("abc")
            message = int.from_bytes(sites["a"].seal([value], order(sites))["sum"][:SIZE], "big")
            ones = [n + (message >> i & 1) for i, n in enumerate(ones)]
        counts.append(ones)
    for ones in counts:
        # Six standard deviations of a fair coin thrown 64 times are 24.
        assert all(abs(n - 32) <= 24 for n in ones)
        assert abs(sum(ones) / len(ones) - 32) < 1


def test_masks_of_rounds_attempts_and_runs_have_nothing_in_common():
    seen = set()
    for context in (RUN, "another run"):
        sites = members(context=context)
        for at in ((1, 0), (2, 0)):
            seen.add(sites["a"].seal([1.0], order(sites, round=at[0], attempt=at[1]))["sum"])
        fewer = order(sites, "abc", round=2, attempt=1)
        seen.add(sites["a"].seal([1.0], fewer)["sum"])
    assert len(seen) == 6


def test_the_same_question_gets_the_same_answer():
    sites = members()
    assert sealed(sites, order(sites)) == sealed(sites, order(sites))


def test_a_lost_site_is_left_out_of_the_next_sum():
    sites = members()
    sealed(sites, order(sites))
    again = sealed(sites, order(sites, "abd", attempt=1))
    assert combine(list(again.values())) == expected("abd")


@each(
    "names, at",
    [
        ("ab", (1, 0)),  # the other's number would follow
        ("bcd", (1, 0)),  # without the site that is asked
        ("abc", (2, 0)),  # a second question in place of the first
        ("abcd", (2, 1)),  # as many as before
        ("abce", (2, 1)),  # another in place of one
        ("abc", (2, 3)),  # too often
        ("abcd", (1, 1)),  # a round that is over
    ],
)
def test_questions_that_could_single_a_site_out_are_refused(names, at):
    sites = members("abcde")
    if at[0] == 2 or at == (1, 1):
        sites["a"].seal(VALUES["a"], order(sites, "abcd", round=2))
    with pytest.raises(SumRefused):
        sites["a"].seal(VALUES["a"], order(sites, names, *at))


@pytest.mark.parametrize("key", ["", "zz" * 32, "00" * 32, 17, None], ids=str)
def test_a_key_that_is_none_is_refused(key):
    sites = members()
    one = order(sites)
    bad = SumOrder(one.round, one.attempt, {**one.statements, "b": {"key": key}})
    with pytest.raises(SumRefused, match="b: a key"):
        sites["a"].seal(VALUES["a"], bad)


def test_another_key_in_a_sites_own_name_is_refused():
    sites = members()
    one = order(sites)
    bad = SumOrder(one.round, one.attempt, {**one.statements, "a": one.statements["b"]})
    with pytest.raises(SumRefused, match="another key of this site"):
        sites["a"].seal(VALUES["a"], bad)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_numbers_that_spoil_a_sum_are_not_sealed(value):
    sites = members()
    with pytest.raises(SumRefused) as error:
        sites["a"].seal([value], order(sites))
    assert str(value) not in str(error.value)


def test_who_signs_with_another_name_is_not_believed():
    class Signed:
        def __init__(self, name):
            self.name = name

        def sign(self, content):
            return {"signature": f"{self.name} {content.hex()}"}

        def vouches(self, site, content, proof):
            return proof.get("signature") == f"{site} {content.hex()}"

    sites = {name: Member(name, RUN, Signed(name)) for name in "abc"}
    messages = {name: site.seal(VALUES[name], order(sites))["sum"] for name, site in sites.items()}
    assert combine(list(messages.values())) == expected("abc")
    sites["b"] = Member("b", RUN, Signed("the server"))
    with pytest.raises(SumRefused, match="b: a key that is not its own"):
        sites["a"].seal(VALUES["a"], order(sites, round=2))
    assert not verified("another run", "a", sites["a"].statement(), Signed("a"))


def test_a_statement_is_checked_once_and_a_changed_one_again():
    class Counting:
        asked: list = []

        def sign(self, content):
            return {"signature": "good"}

        def vouches(self, site, content, proof):
            self.asked.append(site)
            return proof["signature"] == "good"

    sites = {name: Member(name, RUN, Counting()) for name in "abc"}
    first = order(sites)
    for number in (1, 2, 3):
        sites["a"].keys.check(dataclasses.replace(first, round=number))
    assert Counting.asked == ["a", "b", "c"]
    bad = {**first.statements, "b": {**first.statements["b"], "signature": "bad"}}
    for _ in range(2):
        with pytest.raises(SumRefused, match="b: a key that is not its own"):
            sites["a"].keys.check(dataclasses.replace(first, statements=bad))
    swapped = {**first.statements, "b": first.statements["c"]}
    sites["a"].keys.check(dataclasses.replace(first, statements=swapped))
    assert Counting.asked[3:] == ["b", "b", "b"]


def test_a_floor_keeps_sums_large():
    rosters = Rosters("a", least=4)
    sites = members("abcd")
    with pytest.raises(SumRefused, match="a sum of 3 sites, 4 needed"):
        rosters.admit(order(sites, "abc"))
    rosters.admit(order(sites))


def updates_of(names, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return {
        name: {
            "weight": torch.randn(5, 3, generator=generator).to(dtype) * 0.01,
            "bias": torch.randn(4, generator=generator).to(dtype),
            "scale": torch.randn((), generator=generator).to(dtype),
        }
        for name in names
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_masked_updates_add_up_to_the_sum(dtype):
    sites, updates = members(), updates_of("abcd", dtype)
    one = order(sites)
    masked = [mask_update(sites[name].keys, updates[name], one) for name in "abcd"]
    assert all(entry.dtype == torch.int64 for update in masked for entry in update.values())
    found = combine_updates(masked, updates["a"])
    for key in updates["a"]:
        exact = sum(update[key].double() for update in updates.values())
        assert found[key].dtype == dtype and found[key].shape == updates["a"][key].shape
        assert torch.allclose(found[key].double(), exact, rtol=torch.finfo(dtype).eps, atol=4 * STEP)
    again = members()
    others = [mask_update(again[name].keys, updates[name], order(again)) for name in "dcba"]
    assert all(torch.equal(found[key], value) for key, value in combine_updates(others, updates["a"]).items())


def test_a_stream_is_the_same_in_whatever_pieces_it_is_read():
    sites = members("ab")
    one = order(sites)
    (_, whole), (_, pieces) = (next(iter(sites[name].keys.streams(one, "update"))) for name in "ab")
    expected, found, buffer = whole.read(2 * BLOCK + 100), b"", new_buffer()
    for size in (1, 15, 16, BLOCK, 68, BLOCK):
        pieces.read_into(buffer, size)
        found += bytes(buffer[:size])
    assert found == expected


@pytest.mark.parametrize("entries", [1, 7, BLOCK // 8, BLOCK // 8 + 1, BLOCK // 2 - 3])
def test_masks_are_the_streams_of_all_pairs_whatever_the_blocks(entries):
    """Written out with Python's whole numbers; two tensors, so that the second goes on in the middle of a block."""
    sites = members("abc")
    one = order(sites)
    update = {"weight": torch.full((entries,), -0.25), "bias": torch.tensor([1.5, -STEP])}
    expected = [round(float(v) / STEP) for key in ("bias", "weight") for v in update[key]]
    for sign, stream in sites["b"].keys.streams(one, "update"):
        masks = np.frombuffer(stream.read(8 * len(expected)), "<u8")
        expected = [total + sign * int(mask) for total, mask in zip(expected, masks, strict=True)]
    masked = mask_update(sites["b"].keys, update, one)
    assert list(masked) == ["weight", "bias"]
    found = torch.cat([masked["bias"], masked["weight"]]).tolist()
    assert [value % 2**64 for value in found] == [total % 2**64 for total in expected]


def test_masking_holds_the_result_and_no_second_array_of_its_size():
    sites = members()
    one, update = order(sites), {"weight": torch.zeros(2**20)}
    mask_update(sites["a"].keys, {"weight": torch.zeros(1)}, one)
    tracemalloc.start()
    try:
        masked = mask_update(sites["a"].keys, update, one)
        # torch's own memory, the result's, is not counted.
        assert masked["weight"].nbytes > 8 * BLOCK and BLOCK < tracemalloc.get_traced_memory()[1] < 4 * BLOCK
    finally:
        tracemalloc.stop()


def test_masked_updates_without_one_say_nothing():
    sites, updates = members(), updates_of("abcd")
    one = order(sites)
    masked = [mask_update(sites[name].keys, updates[name], one) for name in "abc"]
    with pytest.raises(SumRefused, match="do not cancel"):
        combine_updates(masked, updates["a"])
    # An entry of a masked update is anything between -2^63 and 2^63, of zeros too; the mean deviates by 2^57.
    zero = {"weight": torch.zeros(1000)}
    entries = mask_update(sites["a"].keys, zero, one)["weight"].double()
    assert entries.abs().max() > 2**62 and abs(entries.mean()) < 2**60
    assert abs((entries > 0).double().mean() - 0.5) < 0.1


def test_masks_of_updates_and_of_numbers_differ():
    sites = members()
    one = order(sites)
    read = {p: {stream.read(64) for _, stream in sites["a"].keys.streams(one, p)} for p in ("numbers", "update")}
    assert len(read["numbers"] | read["update"]) == 6


@pytest.mark.parametrize("value", [math.nan, math.inf, LARGEST])
def test_updates_that_would_spoil_a_sum_are_not_masked(value):
    sites = members()
    with pytest.raises(SumRefused, match="not finite, or too large"):
        mask_update(sites["a"].keys, {"weight": torch.tensor([0.0, value])}, order(sites))


def test_a_sum_that_makes_a_variance_negative_is_refused():
    sites = members()
    one = order(sites)
    update = {"norm.running_var": torch.tensor([-0.2, 0.1])}
    masked = [mask_update(sites[name].keys, update, one) for name in "abcd"]
    assert combine_updates(masked, {"norm.running_var": torch.ones(2)})
    with pytest.raises(SumRefused, match="variance below 0"):
        combine_updates(masked, {"norm.running_var": torch.tensor([0.7, 1.0])})


LOOK_ALIKES = [
    ("a", "b"),
    ("ab",),
    (["a", "b"],),
    ([["a"], "b"],),
    (b"a", "b"),
    ("61", "b"),
    ({"a": "b"},),
    ({"mapping": [["a", "b"]]},),
    ({"sequence": ["a", "b"]},),
    ({"bytes": "61"}, "b"),
    ({"a": {"b": None}},),
    ({"a": None, "b": None},),
    ("a", "b", None),
    ("a", 1),
    ("a", 1.0),
    ("a", True),
    ("a", "1"),
    (),
]


def test_fingerprints_tell_contents_apart_and_not_their_order_in_mappings():
    assert len({fingerprint(*content) for content in LOOK_ALIKES}) == len(LOOK_ALIKES)
    assert fingerprint({"a": 1, "b": b"x"}) == fingerprint(dict([("b", b"x"), ("a", 1)]))
    assert fingerprint(("a", "b")) == fingerprint(["a", "b"])


@pytest.mark.parametrize("content", [torch.zeros(1), {1: "a"}, {"a": object()}, [{None}]])
def test_what_has_no_fingerprint_is_no_message(content):
    with pytest.raises(SumRefused, match="another form"):
        fingerprint(content)


def test_a_messages_authors_are_known():
    """Nobody but the two of a pair can make a tag, for this sum and this author only."""
    sites = members("abc")
    one, later = order(sites), order(sites, round=2)
    tag = sites["a"].keys.tag("b", one, "a", b"content")
    assert len(tag) == TAG and tag == sites["b"].keys.tag("a", one, "a", b"content")
    others = [
        sites["a"].keys.tag("b", one, "b", b"content"),
        sites["a"].keys.tag("c", one, "a", b"content"),
        sites["a"].keys.tag("b", later, "a", b"content"),
        sites["a"].keys.tag("b", one, "a", b"Content"),
    ]
    assert tag not in others and len(set(others)) == 4
