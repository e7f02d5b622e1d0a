# SPDX-License-Identifier: Apache-2.0
"""Self-masks of sums: Shamir's shares, and that no server reads two sums of a round, whatever it says of silence."""

import dataclasses
import random

import pytest
import torch

from cases import each
from fairflare.privacy.secure_sums import mask_update
from fairflare.privacy.sum_keys import (
    NONE,
    PRIME,
    SEALED,
    SHARE,
    PairwiseKeys,
    SelfMasks,
    recover,
    self_masked,
    split,
    stream_of,
    threshold,
)
from fairflare.privacy.sum_protocol import SumOrder, SumRefused
from fairflare.privacy.sum_total import combine_updates

NAMES = [f"site-{k}" for k in range(1, 7)]
VICTIM = "site-2"
MODEL = {"w": torch.zeros(2000)}


def test_shares_are_shamirs():
    """f(x) = 1234 + 166 x + 94 x^2, the example that is often printed: f(1) = 1494, f(2) = 1942, f(3) = 2578."""
    shares = {x: y.to_bytes(SHARE, "big") for x, y in ((1, 1494), (2, 1942), (3, 2578))}
    assert int.from_bytes(recover([shares], 3)[0], "big") == 1234
    assert pow(2, PRIME - 1, PRIME) == 1


@each("holders", [3, 4, 9, 40])
def test_any_threshold_of_shares_recovers_the_seed_and_fewer_say_nothing(holders):
    draws, seed, needed = random.Random(holders), bytes(range(31)), threshold(holders)
    shares = dict(enumerate(split(seed, holders, needed), 1))
    for _ in range(5):
        chosen = draws.sample(sorted(shares), needed)
        assert recover([{x: shares[x] for x in chosen}], needed) == [seed]
        few = {x: shares[x] for x in chosen[1:]}
        with pytest.raises(SumRefused, match=f"{needed - 1} shares of a self-mask were handed out, {needed} needed"):
            recover([few], needed)
        # Whatever the seed were, one more share would fit it.
        for other in (bytes(31), bytes([9]) * 31):
            points = [0, *few]
            values = [int.from_bytes(other, "big"), *(int.from_bytes(one, "big") for one in few.values())]
            at = chosen[0]
            fitted = sum(v * _factor(at, x, points) for v, x in zip(values, points, strict=True)) % PRIME
            assert recover([few | {at: fitted.to_bytes(SHARE, "big")}], needed) == [other]


def _factor(at, point, points):
    above = below = 1
    for other in points:
        if other != point:
            above, below = above * (at - other), below * (point - other)
    return above * pow(below, -1, PRIME)


def test_two_sums_of_a_round_need_more_honest_sites_than_there_are():
    for sites in range(3, 200):
        for asked in range(3, sites + 1):
            needed, colluding = threshold(asked, sites), sites // 3
            assert needed <= asked
            # A group of honest sites for each sum: no such two. Where all are needed, an honest one would be in both.
            assert 2 * (needed - colluding) > asked - colluding or needed == asked


class Round:
    """A round of six sites, of whom the server may ask what it likes.

    Attributes:
        sent: (attempt, site) -> its masked update and its shares for the others.
    """

    def __init__(self, masked=True):
        self.keys = {name: PairwiseKeys(name, "a run") for name in NAMES}
        self.self_masks = {name: SelfMasks(own, "update") for name, own in self.keys.items()}
        self.statements = {name: own.statement() for name, own in self.keys.items()}
        self.updates = {name: {"w": torch.randn(2000)} for name in NAMES}
        self.masked, self.sent = masked, {}

    def order(self, attempt, roster):
        return SumOrder(1, attempt, {name: self.statements[name] for name in roster}, b"model")

    def send(self, attempt, roster):
        order = self.order(attempt, roster)
        for name in roster:
            seed, shares = self.self_masks[name].draw(order, len(NAMES)) if self.masked else (None, b"")
            self_mask = stream_of(seed) if self.masked else None
            self.sent[attempt, name] = (
                mask_update(self.keys[name], self.updates[name], order, self_mask=self_mask),
                shares,
            )

    def shares(self, attempt, roster, holder):
        """What the holder hands out, {author: share}."""
        order, sealed = self.order(attempt, roster), {}
        for author in roster:
            place = [name for name in roster if name != author].index(holder) if author != holder else 0
            sealed[author] = self.sent[attempt, author][1][place * SEALED : (place + 1) * SEALED]
        given = self.self_masks[holder].hand_out(order, sealed)
        return {author: given[k * SHARE : (k + 1) * SHARE] for k, author in enumerate(roster)}

    def sum_of(self, attempt, roster, holders):
        """The sum of an attempt, by the shares of all holders that hand them out, or have (a mapping)."""
        given = [{} for _ in roster]
        for holder in holders:
            try:
                own = holders[holder] if isinstance(holders, dict) else self.shares(attempt, roster, holder)
            except SumRefused:
                continue
            for k, author in enumerate(roster):
                given[k][roster.index(holder) + 1] = own[author]
        self_masks = [stream_of(seed) for seed in recover(given, threshold(len(NAMES)))] if self.masked else ()
        return combine_updates([self.sent[attempt, name][0] for name in roster], MODEL, self_masks=self_masks)["w"]


def attacked(masked, before, victim):
    """The victim's update by what a server reads of two sums, as a cosine; None where it cannot read both.

    All six have sent their masked updates. ``before`` of them hand out their shares, as to a server that keeps to the
    protocol; then it says that the victim is silent, and asks everybody for whatever they still hand out.
    """
    round, rest = Round(masked), [name for name in NAMES if name != victim]
    round.send(0, NAMES)
    held = {name: round.shares(0, NAMES, name) for name in NAMES[:before]} if masked else {}
    try:
        round.send(1, rest)
        both = [round.sum_of(0, NAMES, held), round.sum_of(1, rest, rest)]
    except SumRefused:
        return None
    return float(torch.cosine_similarity(both[0] - both[1], round.updates[victim]["w"], dim=0))


@each("victim", NAMES)
def test_a_server_that_lies_about_silence_or_gets_an_answer_late_reads_one_sum(victim):
    assert attacked(False, 0, victim) > 0.99, "without self-masks the difference of the two sums is the victim's update"
    for before in range(len(NAMES) + 1):
        assert attacked(True, before, victim) is None


def test_shares_of_both_sums_are_never_enough():
    """Whoever seals a second sum hands out no share of the first: whatever the server asks, and in which order."""
    needed = threshold(len(NAMES))
    for victim in NAMES:
        round, rest = Round(), [name for name in NAMES if name != victim]
        round.send(0, NAMES)
        round.send(1, rest)
        given = 0
        for name in NAMES:
            try:
                round.shares(0, NAMES, name)
                given += 1
            except SumRefused:
                assert name != victim
        assert given == 1 < needed
        with pytest.raises(SumRefused):
            round.sum_of(0, NAMES, NAMES)
        total = round.sum_of(1, rest, rest[:needed])
        assert torch.allclose(total, sum(round.updates[name]["w"] for name in rest), atol=1e-5)


def test_what_is_covered_looks_like_noise_and_the_same_sum_is_handed_out_once():
    round = Round()
    round.send(0, NAMES)
    total = sum(round.sent[0, name][0]["w"].double() for name in NAMES)
    assert total.abs().mean() > 2**60, "the masks of pairs cancel, and the self-masks do not"
    order = round.order(0, NAMES)
    first = round.self_masks["site-1"].hand_out(order, {})
    assert first.count(NONE) == 5, "a share that was not sent is none"
    assert round.shares(0, NAMES, "site-1") and round.self_masks["site-1"].draw(order, 6)[0]
    other = dataclasses.replace(order, attempt=1)
    for refused in (
        lambda: round.self_masks["site-1"].draw(other, 6),
        lambda: round.self_masks["site-1"].hand_out(other, {}),
    ):
        with pytest.raises(SumRefused, match="a second sum of a round"):
            refused()
    with pytest.raises(SumRefused, match="4 sites, 5 of 6 needed"):
        SelfMasks(round.keys["site-2"], "update").draw(round.order(1, NAMES[:4]), 6)


def test_a_share_is_read_by_its_holder_for_its_sum_alone():
    round = Round()
    round.send(0, NAMES)
    order = round.order(0, NAMES)
    for_third = round.sent[0, "site-1"][1][SEALED : 2 * SEALED]  # for site-2 first, then for site-3
    assert NONE not in round.self_masks["site-3"].hand_out(order, {"site-1": for_third})[:SHARE]
    assert round.self_masks["site-4"].hand_out(order, {"site-1": for_third})[:SHARE] == NONE
    numbers = SelfMasks(round.keys["site-3"], "numbers")
    numbers.draw(order, 6)
    assert numbers.hand_out(order, {"site-1": for_third})[:SHARE] == NONE


def test_a_self_mask_comes_off_as_it_was_put_on():
    message = random.Random(1).randbytes(5001)
    assert self_masked(self_masked(message, b"s" * 31), b"s" * 31) == message != self_masked(message, b"s" * 31)
