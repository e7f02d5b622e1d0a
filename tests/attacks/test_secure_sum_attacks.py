# SPDX-License-Identifier: Apache-2.0
"""A server that treats sites of a secure sum differently, or makes sums up, learns no site's update from it."""

import dataclasses
import functools
import json
import types

import pytest
import torch
from tests.helpers import PROBES, TRAINING, Accuracy, Blobs, initial_model, small_network

from cases import each
from fairflare.aggregators.fedism import FedISM
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.exchanges.sums import KEPT, SiteSums
from fairflare.engine.in_process import InProcess
from fairflare.engine.memory import SiteMemory
from fairflare.engine.server_sums import ServerSums
from fairflare.engine.site import Site
from fairflare.privacy.secure_sums import BITS, SIZE, STEP, Credentials, combiner, number_scheme, sealed_sizes
from fairflare.privacy.sum_keys import PairwiseKeys
from fairflare.privacy.sum_protocol import SumRefused
from fairflare.trainers.gsam import GSAM
from fairflare_lab.privacy.encrypted_sums import EXPONENTS, new_contexts

NAMES = [f"site-{k}" for k in range(1, 5)]
VICTIM = "site-2"
LEARNED = ("0.weight", "4.weight")
"""What does not move where all units of the hidden layer are dead."""


class LyingServer(InProcess):
    """Sends each site what ``lie`` makes of its instruction, and keeps the answers to the last exchange of updates."""

    def __init__(self, sites, lie):
        super().__init__(sites)
        self.lie, self.masked = lie, {}

    def exchange(self, instructions):
        for name in sorted(instructions):
            try:
                for one in self.told(name, instructions[name]):
                    (answer,) = super().exchange({name: one})
            except SumRefused as error:
                answer = Answer(name, instructions[name].round.number, error=f"refused: {error}")
            if instructions[name].task == "weigh" and answer.update is not None:
                self.masked[name] = answer.update
            yield answer

    def told(self, name, one):
        """One instruction or several in a row, of which the last one's answer counts."""
        found = self.lie(name, one)
        return found if isinstance(found, list) else [found]


class Remembering(SiteSums):
    """Keeps the update as it was trained, which a site itself lets go of once it is weighed."""

    def trained(self, answer, instruction):
        self.trained_update = answer.update
        return super().trained(answer, instruction)


class Attack:
    """One round among four sites under a server that lies.

    Attributes:
        summed: what the server's own code makes of the round.
        noise: the sum of all masked updates that arrived, whatever it is.
        update: the victim's own, as it was trained.
    """

    def __init__(self, lie, scheme="masks", kept=None, rule=None, rounds=1, federations=None, rules=()):
        self.credentials = contexts(scheme)
        self.rules = dict.fromkeys(NAMES, rule or FedISM()) | dict(rules)
        self.sites = {name: self._site(k, name, scheme, kept, federations) for k, name in enumerate(NAMES, 1)}
        self.model = initial_model()
        server = ServerSums(
            pass_on=combiner(scheme, self.credentials[1]),
            vouched=lambda site, said: True,
            sizes=sealed_sizes(scheme, FedISM.n_terms),
            least=3,
        )
        transport = LyingServer(self.sites, lie)
        first = Round(1, TRAINING.rounds)
        server.learn(list(transport.exchange({name: Instruction("preflight", first, {}) for name in NAMES})))
        for number in range(1, rounds + 1):
            at = Round(number, TRAINING.rounds)
            trained = list(transport.exchange({name: Instruction("train", at, self.model) for name in NAMES}))
            self.summed = server.round(transport, trained, at, {}, self.model)
        self.update = self.sites[VICTIM].aggregation.trained_update
        self.masked, arrived = transport.masked, transport.masked.values()
        self.noise = {key: sum(one[key] for one in arrived).double() * STEP for key in self.update} if arrived else {}

    def _site(self, k, name, scheme, kept, federations):
        keys, memory = PairwiseKeys(name, "a run"), SiteMemory()
        if kept and name in kept:
            memory.keep(0, {KEPT: kept[name]})
        numbers = number_scheme(scheme, keys, self.credentials[0])
        trainable = frozenset(name for name, _ in small_network().named_parameters())
        more = {"trainable": trainable} | ({"federation": federations[k - 1]} if federations else {})
        sums = Remembering(self.rules[name], numbers, keys, memory, PROBES[0].reports, 3, **more)
        return Site(name, Blobs(k), small_network(), GSAM(), PROBES, TRAINING, Accuracy(), seed=5, aggregation=sums)

    @property
    def fails(self):
        """Whether no sum came about because sites have no masks in common, or one without the victim."""
        known = ("the masks do not cancel", "not the sums that were asked for", "were handed out")
        without = self.summed.total is not None and VICTIM not in [reply.site for reply in self.summed.replies]
        return without or (self.summed.total is None and any(text in self.reasons for text in known))

    @property
    def reasons(self):
        return " ".join(f"{r.site}: {r.code} {r.detail}" for r in self.summed.rejections)

    def reads_the_victim(self, keys=None):
        """Whether what arrived has the direction of the victim's update."""
        if not self.noise:
            return False
        keys = keys or list(self.update)
        mine, theirs = (torch.cat([one[key].double().flatten() for key in keys]) for one in (self.update, self.noise))
        return float(torch.nn.functional.cosine_similarity(mine, theirs, dim=0)) > 0.99


@functools.cache
def contexts(scheme):
    """The sites' credentials and the server's."""
    if scheme == "masks":
        return Credentials(), Credentials()
    pytest.importorskip("tenseal", reason="the extra he is not installed")
    own, public = new_contexts()
    return Credentials(ckks=lambda: own), Credentials(ckks=lambda: public)


def told(**change):
    """A lie about sums: what the others and what the victim are told in place of what they should be."""

    def lie(name, one):
        if one.task != "weigh":
            return one
        made_up = change["victim" if name == VICTIM else "others"](one.sealed["sums"])
        return dataclasses.replace(one, sealed={**one.sealed, "sums": made_up})

    return lie


def dead(model):
    """No unit behind the normalisation lets anything through, whatever its input."""
    return {**model, "1.weight": torch.zeros(6), "1.bias": -torch.ones(6)}


def dead_for_the_others(name, one):
    return dataclasses.replace(one, model=dead(one.model)) if one.task == "train" and name != VICTIM else one


def test_an_honest_server_gets_the_sum_and_no_more():
    """What the attacks below are measured by: the sum comes about, and it is not the victim's update."""
    one = Attack(lambda name, instruction: instruction)
    assert one.summed.total is not None and not one.summed.rejections
    assert not one.reads_the_victim() and not one.reads_the_victim(LEARNED)


def test_sums_of_its_own_for_each_site():
    """The victim's weight would be 1 and the others' 0."""
    attack = Attack(told(victim=lambda _: [1e-300, 0.0, 4.0, 4.0], others=lambda _: [1e300, 0.0, 4.0, 4.0]))
    assert not attack.reads_the_victim() and attack.summed.total is None
    assert "not the sums that were asked for" in attack.reasons


def with_total(total, through):
    """Sealed numbers whose first sum is ``total``: the server can move any message, whatever is in it."""

    def move(sums):
        whole = sum(int.from_bytes(message[:SIZE], "big") for message in sums.values()) % 2**BITS
        over, under = float(total).as_integer_ratio()
        first = (int.from_bytes(sums[through][:SIZE], "big") + (over << 1074) // under - whole) % 2**BITS
        return {**sums, through: first.to_bytes(SIZE, "big") + sums[through][SIZE:]}

    return move


@pytest.mark.parametrize("others", [1e300, None], ids=["others changed", "others not changed"])
def test_messages_of_its_own_for_each_site(others):
    """Each is told its own message as it was, and the sum moved through another's."""
    change = with_total(others, VICTIM) if others else lambda sums: sums
    attack = Attack(told(victim=with_total(1e-300, "site-1"), others=change))
    assert VICTIM not in attack.masked and not attack.reads_the_victim()
    assert f"{VICTIM}: site_error refused: not the sums that were asked for" in attack.reasons


@each("scheme", ["masks", "ckks"])
def test_a_model_with_dead_units_for_the_others(scheme):
    attack = Attack(dead_for_the_others, scheme)
    assert attack.fails and not attack.reads_the_victim(LEARNED)


def with_ciphertext(total, change):
    """What sites are told, with another ciphertext in it."""
    altered = change(total["total"] if isinstance(total, dict) else total)
    return {**total, "total": altered} if isinstance(total, dict) else altered


def added(total, amounts):
    """The server cannot read a ciphertext, but add to it."""
    ts = pytest.importorskip("tenseal", reason="the extra he is not installed")
    public = ts.context_from(contexts("ckks")[1].ckks())
    return with_ciphertext(total, lambda one: (ts.ckks_vector_from(public, one) + amounts).serialize())


RUNGS = len(EXPONENTS)
AS_IT_IS = [0.0] * (2 * RUNGS)
HUGE = [1e5] + [0.0] * (RUNGS - 1) + [0.0] + [4.0] * (RUNGS - 1)
"""Added to an encrypted number: that it is too large at all scales but one, and there 1e5."""


def test_encrypted_sums_of_its_own_for_each_site():
    attack = Attack(told(victim=lambda total: total, others=lambda total: added(total, HUGE + 3 * AS_IT_IS)), "ckks")
    assert set(attack.masked) == {VICTIM} and not attack.reads_the_victim() and attack.summed.total is None
    assert attack.reasons.count("encrypted sums that are not of everyone's numbers") == 3


def test_encrypted_sums_that_single_out_a_site_which_is_new():
    """The server adds the same for all: the shares of those that are not new become next to nothing."""
    kept = {name: 1 / 3 for name in NAMES if name != VICTIM}
    spread = told(**dict.fromkeys(("victim", "others"), lambda total: added(total, 2 * HUGE + 2 * AS_IT_IS)))
    attack = Attack(spread, "ckks", kept=kept)
    assert not attack.masked and not attack.reads_the_victim()
    assert attack.reasons.count("encrypted sums that are not of everyone's numbers") == 4


def test_sums_that_single_out_a_site_which_is_new():
    """All are told the same: that weights are spread so thin that nothing counts but the share of a new site."""
    made_up = [1e300, 1e300, 3.0, 4.0]
    kept = {name: 1 / 3 for name in NAMES if name != VICTIM}
    attack = Attack(told(victim=lambda _: made_up, others=lambda _: made_up), kept=kept)
    assert not attack.reads_the_victim() and attack.summed.total is None
    spread = told(victim=with_total(1e300, "site-1"), others=with_total(1e300, "site-1"))
    attack = Attack(spread, kept=kept)
    assert not attack.masked and attack.reasons.count("not the sums that were asked for") == 4


def test_a_second_training_after_the_numbers_were_sealed():
    """All train a model with dead units and the victim alone another one afterwards; with q = 0 no number differs."""

    def lie(name, one):
        if one.task == "train":
            lie.model = one.model
            return dataclasses.replace(one, model=dead(one.model))
        if one.task == "weigh" and name == VICTIM:
            return [dataclasses.replace(one, task="train", model=lie.model, sealed={}), one]
        return one

    attack = Attack(lie, rule=FedISM(q=0.0))
    assert VICTIM not in attack.masked and not attack.reads_the_victim(LEARNED)
    assert f"{VICTIM}: site_error refused: no sum of this round's numbers" in attack.reasons


def changed(task, **change):
    """What the victim is sent differs in ``change``; everyone else is sent what an honest server sends."""

    def lie(name, one):
        return dataclasses.replace(one, **change) if one.task == task and name == VICTIM else one

    return lie


def changed_seal(task, change):
    def lie(name, one):
        honest = one.task != task or name != VICTIM
        return one if honest else dataclasses.replace(one, sealed={**one.sealed, **change(one.sealed)})

    return lie


def nudged(name, one):
    """The smallest step in one entry."""
    if one.task != "train" or name != VICTIM:
        return one
    bias = one.model["4.bias"].clone()
    bias[0] = torch.nextafter(bias[0], torch.tensor(9.0))
    return dataclasses.replace(one, model={**one.model, "4.bias": bias})


def statement_with(**more):
    """The statement of another site with something beside its key."""

    def change(sealed):
        statements = sealed["statements"]
        return {"statements": {**statements, "site-3": {**statements["site-3"], **more}}}

    return change


DIFFERENCES = {
    "model by one bit": nudged,
    "orders": changed("train", orders={"rho": 0.1}),
    "length of the run": changed("train", round=Round(1, 1000)),
    "attempt at the numbers": changed_seal("sum", lambda sealed: {"attempt": 1}),
    "attempt at the updates": changed_seal("weigh", lambda sealed: {"attempt": 1}),
    "roster": changed_seal(
        "weigh", lambda sealed: {"statements": {k: v for k, v in sealed["statements"].items() if k != "site-4"}}
    ),
    "statement of another": changed_seal("weigh", statement_with(certificate="another")),
    "statement of another, numbers": changed_seal("sum", statement_with(certificate="another")),
}


@each("scheme", ["masks", "ckks"])
@each("name", DIFFERENCES)
def test_whatever_the_victim_is_sent_otherwise_no_sum_comes_about(name, scheme):
    attack = Attack(DIFFERENCES[name], scheme)
    assert attack.fails and not attack.reads_the_victim()


def test_sites_of_two_federations_have_no_masks_in_common():
    attack = Attack(lambda name, one: one, federations=["a", "a", "b", "a"])
    assert attack.fails


def test_the_sums_of_an_earlier_round_are_not_taken_again():
    """To one site or to all: they are not of this round's messages."""

    def replay(name, one):
        if one.task == "weigh" and one.round.number == 1:
            replay.first = one.sealed["sums"]
        if one.task == "weigh" and one.round.number == 2:
            return dataclasses.replace(one, sealed={**one.sealed, "sums": replay.first})
        return one

    attack = Attack(replay, rounds=2)
    assert attack.summed.total is None and "not the sums that were asked for" in attack.reasons


class ManyTimes(FedISM):
    """A site that counts for three."""

    def terms(self, scalars, n_examples, kept):
        return (*super().terms(scalars, n_examples, kept)[:3], 3.0)


def test_a_site_that_counts_for_several_is_noticed_by_the_others():
    attack = Attack(lambda name, one: one, rules={"site-1": ManyTimes()})
    assert not attack.masked and attack.reasons.count("sums over another number of sites") == 4


@pytest.mark.parametrize("number", [1, 2])
def test_a_sum_is_not_asked_for_again_with_fewer_sites(number):
    """Of two sums over different sites the difference would tell, also after the site has trained anew."""
    attack = Attack(lambda name, one: one, rounds=2)
    site, at = attack.sites[VICTIM], Round(number, TRAINING.rounds)
    site.handle(Instruction("train", at, attack.model))
    three = {name: one.aggregation.statement() for name, one in attack.sites.items() if name != "site-4"}
    for attempt in range(3):
        with pytest.raises(SumRefused, match="a second sum of"):
            site.handle(Instruction("sum", at, {}, sealed={"attempt": attempt, "statements": three}))


EGRESS, STOCK = "fairflare.flare.egress.EgressFilter", "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
CHAINS = {
    "as exported": [{"filters": [EGRESS]}],
    "out": [{"direction": "out", "filters": [STOCK, EGRESS]}],
    "OUT": [{"direction": "OUT", "filters": [EGRESS]}],
    "inout": [{"direction": "inout", "filters": [EGRESS]}],
    "in": [{"direction": "in", "filters": [EGRESS]}],
    "In": [{"direction": "In", "filters": [EGRESS]}],
    "in, and another out": [{"direction": "in", "filters": [EGRESS]}, {"direction": "out", "filters": [STOCK]}],
    "out, and another in": [{"direction": "in", "filters": [STOCK]}, {"direction": "out", "filters": [EGRESS]}],
    "not the last": [{"filters": [EGRESS, STOCK]}],
    "none": [],
}


@each("name", CHAINS)
def test_a_site_counts_a_filter_as_the_mask_where_flare_applies_it(name, tmp_path):
    """A chain with direction "in" is never applied to what a site sends."""
    pytest.importorskip("nvflare")
    from nvflare.private.fed_json_config import FedJsonConfigurator, FilterChain

    from fairflare.flare.executor import _is_masked

    chains = [{"tasks": ["weigh"], **one, "filters": [{"path": p} for p in one["filters"]]} for one in CHAINS[name]]
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config_fed_client.json").write_text(json.dumps({"task_result_filters": chains}))
    table = {}
    for one in chains:
        chain = FilterChain("task_result", one.get("direction", "out"))  # the default at a site
        chain.tasks, chain.filters = one["tasks"], one["filters"]
        FedJsonConfigurator._build_filter_table(None, chain, table)
    applied = table.get("weigh/out", [{}])[-1].get("path") == EGRESS
    context = types.SimpleNamespace(get_prop=lambda key: str(tmp_path))
    assert _is_masked(context) == applied == (name in ("as exported", "out", "OUT", "inout", "out, and another in"))
