# SPDX-License-Identifier: Apache-2.0
"""Secure sums: a site keeps its answer back until it knows its own weight, weighs its update and masks it.

``server_sums`` is the server's half, which learns the sum alone.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fairflare.aggregators.base import SummedRule
from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.schema import MASKED, Answer, Instruction, answer_fields
from fairflare.core.types import Cost, Number, StateDict
from fairflare.engine.exchanges.base import Exchange, OfRun, find
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import SiteMemory, SpentFile
from fairflare.privacy.egress import FieldCheck, check_scalars
from fairflare.privacy.identity import PROOF, Credentials, is_proof
from fairflare.privacy.referee import Referee
from fairflare.privacy.secure_sums import (
    MaskedSums,
    mask_update,
    masked_sizes,
    number_scheme,
    sealed_sizes,
)
from fairflare.privacy.statements import Sealed
from fairflare.privacy.sum_keys import SELF_MASK, SHARES, PairwiseKeys, SelfMasks, self_masked, stream_of
from fairflare.privacy.sum_protocol import NumberScheme, Rosters, SumOrder, SumRefused, fingerprint, graph_of

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.privacy.differential_privacy import SiteNoise

SITE_NOISE = "fairflare.privacy.differential_privacy"
"""By a name that no reader of imports follows: jobs with a hospital's budget alone carry it."""


def sealed_check(sizes: Mapping[str, Mapping[str, Container[int]]]) -> FieldCheck:
    """The check of ``Answer.sealed``: a key and its proof in answer to "preflight", else bytes of known lengths.

    Args:
        sizes: task -> name -> how many bytes it may have.
    """

    def check(sealed: Any, task: str) -> None:
        here = sizes.get(task, {})
        names = PROOF if task == "preflight" else here
        if not isinstance(sealed, Mapping) or any(name not in names for name in sealed):
            raise EgressRefused("sealed: a name that is not on the list")
        for name, value in sealed.items():
            if name in here and (type(value) is not bytes or len(value) not in here[name]):
                raise EgressRefused(f"sealed {name}: not bytes, or too many")
            if name not in here and not is_proof(name, value):
                raise EgressRefused(f"sealed {name}: not a key or its proof")

    return check


def sizes_in_rounds(numbers: Container[int]) -> dict[str, dict[str, Container[int]]]:
    """Task of a round -> name -> bytes, where sealed numbers have so many."""
    return {
        "sum": {"sum": numbers, "cover": SELF_MASK},
        "weigh": {"cover": SELF_MASK},
        "reveal": {"shares": SHARES},
    }


class Lengths(Container[int]):
    """How many bytes one of several sealed sums may have."""

    def __init__(self, ranges: Sequence[range]) -> None:
        self._ranges = ranges

    def __contains__(self, size: object) -> bool:
        return any(size in one for one in self._ranges)


@dataclass(frozen=True)
class Sums(Exchange):
    """A round's "sum", "weigh" and "reveal"; the server's half is ``server_sums``, in the place of ``combination``."""

    tasks = ("sum", "weigh", "reveal")
    fields = ("sealed",)
    cost = Cost()

    def at_site(
        self,
        run: OfRun,
        kept: SiteMemory | None = None,
        own: Credentials | None = None,
        spent: SpentFile | None = None,
        referee: Referee | None = None,
    ) -> SiteSums:
        """What seals and masks the answers of a site.

        Args:
            kept: the site's memory.
            own: what it has been given.
            spent: what its budget has spent.
            referee: what it agrees to over rounds and jobs.
        """
        config, parts, own = run.config, run.parts, own or Credentials()
        graph = graph_of(config.mask_neighbours, len(parts.task.sites()) - bool(config.leave_out))
        keys = PairwiseKeys(run.site, config.sha256(), own.identity, graph)
        scheme = number_scheme(config.secure_sum, keys, own)
        noise = None
        if config.site_epsilon:
            budget = (config.site_clip, config.site_epsilon, config.site_delta, config.site_colluders)
            noise = importlib.import_module(SITE_NOISE).SiteNoise(*budget, config.training.rounds, spent)
        own_of = (summed(parts.rule), scheme, keys, kept or SiteMemory(), parts.scalars(anchored=False))
        return SiteSums(*own_of, config.min_sites, config.federation, parts.trainable, noise, referee)

    def leaves(self, run: OfRun) -> Mapping[str, FieldCheck]:
        """Keys, sealed numbers and shares; after the last round sealed sums over calibration cases."""
        sizes = sizes_in_rounds(sealed_sizes(run.config.secure_sum, summed(run.parts.rule).n_terms))
        if run.config.after != "none":
            after: Any = find("after")
            sizes["calibrate"] = {"sum": masked_sizes(after.terms(run))}
        for name in run.config.exchanges:
            for task, of in find(name).sealed(run).items():
                sizes[task] = {key: Lengths([masked_sizes(terms) for terms in many]) for key, many in of.items()}
        return {"sealed": sealed_check(sizes)}


EXCHANGE = Sums()


def summed(rule: object) -> SummedRule:
    """The rule, whose weights follow from sums over the sites; raises UserError for any other."""
    if not isinstance(rule, SummedRule):
        raise UserError(f"secure_sum: {type(rule).__name__} weighs by more than sums over the sites")
    return rule


KEPT = "secure_sum"
"""Key of the site's memory under which the rule's number for the rounds to come lies."""


class SiteSums:
    """A site's part in secure sums: what happens to its answer between training and sending.

    Args:
        rule: computes terms and weight from the site's own numbers.
        memory: the site's; the rule's number is kept in it from round to round.
        scalars: the probes' numbers with their ranges, which nobody else can check.
        trainable: the model's entries that train; none: all are looked at as such.
        noise: what is done to the weighted update before it is masked; None: nothing.
        referee: what the site agrees to over rounds and jobs; None: it has answered nothing before.
    """

    goes_back: ClassVar[bool] = False
    """A server could have one site alone forget its number: what the sums then lack would be that site's."""

    def __init__(
        self,
        rule: SummedRule,
        scheme: NumberScheme,
        keys: PairwiseKeys,
        memory: SiteMemory,
        scalars: Sequence[Number],
        least: int,
        federation: str = "",
        trainable: frozenset[str] = frozenset(),
        noise: SiteNoise | None = None,
        referee: Referee | None = None,
    ) -> None:
        self._rule, self._scheme, self._keys, self._memory, self._scalars = rule, scheme, keys, memory, scalars
        self._sums, self._updates = Rosters(keys.site, least), Rosters(keys.site, least)
        self._counts, self._counted = MaskedSums(keys), Rosters(keys.site, least)
        self._further, self._set, self._least = MaskedSums(keys), tuple[str, ...](), least
        self._self_masks = {purpose: SelfMasks(keys, purpose) for purpose in ("numbers", "update")}
        self._seed, self._first = b"", (0, 0)
        self._federation, self._trainable, self._noise = federation, trainable, noise
        self._referee = referee or Referee()
        self._held: Answer | None = None
        self._received = b""
        self._terms: tuple[float, ...] = ()
        self._sealed: tuple[int, tuple[float, ...]] | None = None
        self._opened: tuple[int, Any] | None = None
        self._weighted: Answer | None = None

    def statement(self) -> Sealed:
        return self._keys.statement()

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {
            "sum": lambda site, instruction: self.seal(instruction),
            "weigh": lambda site, instruction: self.weigh(instruction),
            "reveal": lambda site, instruction: self.reveal(instruction),
        }

    def trained(self, answer: Answer, instruction: Instruction) -> Answer:
        """Keep the answer to "train"; what is sent says only that the site is ready.

        What the site was sent is kept as a fingerprint, on which the masks will depend: sites that were sent different
        models, orders or rounds have no masks in common.

        Raises:
            EgressRefused: a number is out of its range.
        """
        check_scalars(answer.scalars, self._scalars)
        if self._noise is not None:
            self._noise.check()
        self._held, self._weighted = answer, None
        sha256, trainable = model_hash(instruction.model), self._trainable or instruction.model.keys()
        shared = sorted(trainable & answer.update.keys())
        own = ({key: content[key] for key in shared} for content in (instruction.model, answer.update))
        self._referee.received(sha256, *own)
        sent = (sha256, instruction.orders, answer.round, instruction.round.total)
        self._received = fingerprint(self._federation, *sent)
        self._terms = self._rule.terms(answer.scalars, answer.n_examples, self._kept(answer.round))
        return travelling(answer, "train")

    def seal(self, instruction: Instruction) -> Answer:
        """The answer to "sum"; raises SumRefused, for other numbers in a round too: their masks could be the same."""
        held, order = self._answer_of(instruction), _order(instruction, self._received)
        if self._sealed is not None and self._sealed[0] == held.round and self._sealed[1] != self._terms:
            raise SumRefused("a second training in one round")
        if self._opened is not None and self._opened[0] == held.round:
            raise SumRefused("a second sum of one round")
        self._keys.check(order)
        self._sums.admit(order)
        if self._first[0] != held.round:
            self._first = held.round, len(order.roster)
        seed, shares = self._self_masks["numbers"].draw(order, self._first[1])
        self._sealed = (held.round, self._terms)
        sealed = self_masked(self._scheme.seal(self._terms, order)["sum"], seed)
        return Answer(site=held.site, round=held.round, sealed={"sum": sealed, "cover": shares})

    def reveal(self, instruction: Instruction) -> Answer:
        """Shares of what masks the sum that this site took part in last, which can then be read.

        Raises:
            SumRefused: this site has no part in the sum.
            EgressRefused: the referee has something against it.
        """
        sealed = instruction.sealed
        order = {"numbers": self._sums, "update": self._updates}[sealed["of"]].last
        if order is None or (order.round, order.attempt) != (instruction.round.number, sealed["attempt"]):
            raise SumRefused("shares of a sum that this site has no part in")
        if self._sums.last is None or self._sums.last.bound != self._received:  # the referee would keep another model
            raise SumRefused("shares of a sum of another model than the last one")
        self._referee.admit(sealed["of"], order.round, order.roster)
        shares = self._self_masks[sealed["of"]].hand_out(order, sealed["covers"])
        return Answer(site=self._keys.site, round=order.round, sealed={"shares": shares})

    def weigh(self, instruction: Instruction) -> Answer:
        """The withheld answer with p_k D_k in place of D_k, and without the numbers behind p_k; still to be masked."""
        held, sealed = self._answer_of(instruction), instruction.sealed["sums"]
        summed = self._sums.last
        if summed is None or self._sealed != (held.round, self._terms) or summed.bound != self._received:
            raise SumRefused("no sum of this round's numbers")
        order = _order(instruction, fingerprint(summed.digest(""), sealed))
        if not set(order.roster) <= set(summed.roster):
            raise SumRefused("sites that were not in the sum")
        if order == self._updates.last:
            raise SumRefused("a second update with the same masks")
        self._keys.check(order)
        if self._noise is not None:
            self._noise.charge()
        self._updates.admit(order)
        self._seed, shares = self._self_masks["update"].draw(order, self._first[1])
        if self._weighted is None:
            self._weighted = self._weigh(held, sealed)
            self._held = dataclasses.replace(held, update={})  # D_k is needed no more
        elif self._opened != (held.round, sealed):
            raise SumRefused("a second sum of one round")  # two weighted updates would tell their weights' ratio
        return dataclasses.replace(self._weighted, sealed={"cover": shares})

    def summed(self, sums: list[float], instruction: Instruction) -> Mapping[str, Any]:
        """The sums behind masks that depend on the model: one sum, of one model and all sites of the last round.

        Two sums would differ by a site, and a site that is silent costs everyone the sum.

        Raises:
            SumRefused: another model or other sites than the first time, or sites of the last round are missing.
            EgressRefused: the referee has something against it.
        """
        content = (self._federation, model_hash(instruction.model), instruction.round.total)
        order = _order(instruction, fingerprint("calibrate", *content))
        if self._counted.last is not None and self._counted.last.bound != order.bound:
            raise SumRefused("a second model to calibrate")
        if self._counted.last not in (None, order):
            raise SumRefused("a second sum after the last round")
        trained = self._updates.last
        if trained is not None and trained.round == order.round and not set(trained.roster) <= set(order.roster):
            raise SumRefused("a sum without all sites of the last round")
        self._keys.check(order)
        self._counted.admit(order)
        self._referee.received(content[1], instruction.model, {})
        self._referee.admit("calibrate", order.round, order.roster)
        return {"sealed": self._counts.seal(sums, order)}

    def total(self, instruction: Instruction, terms: int) -> list[float]:
        return self._counts.open(instruction.sealed["sums"], terms)

    def further(self, sums: list[float], instruction: Instruction, *about: Any) -> Mapping[str, Any]:
        """One of an exchange's sums, each behind masks of its own and all of one set of sites: a difference of sets
        would show those between.

        Raises:
            SumRefused: other sites than the first time, or sites of the last round are missing.
        """
        order = _order(instruction, fingerprint("further", self._federation, *about))
        trained = self._updates.last
        if trained is not None and trained.round == order.round and not set(trained.roster) <= set(order.roster):
            raise SumRefused("a sum without all sites of the last round")
        if self._set not in ((), order.roster):
            raise SumRefused("a sum over other sites than the one before")
        self._keys.check(order)
        Rosters(self._keys.site, self._least).admit(order)
        self._set, self._further = order.roster, MaskedSums(self._keys)
        return {"sealed": self._further.seal(sums, order)}

    def further_total(self, instruction: Instruction, terms: int) -> list[float]:
        return self._further.open(instruction.sealed["sums"], terms)

    def masks(self, answer: Answer) -> bool:
        return answer.update is not None

    def final(self, answer: Answer) -> Answer:
        if not self.masks(answer):
            return answer
        return dataclasses.replace(answer, update=self.mask(answer.update), update_kind=MASKED)

    def mask(self, update: Mapping[str, Any]) -> StateDict:
        """The update of ``weigh``, or what the site's own filters made of it, as only everyone's sum shows it."""
        if self._updates.last is None:
            raise SumRefused("nothing was weighed")
        if self._noise is not None:
            update = self._noise.applied(update, len(self._updates.last.roster))
        self_mask = stream_of(self._seed)
        return mask_update(self._keys, update, self._updates.last, self_mask)

    def _weigh(self, held: Answer, total: Any) -> Answer:
        if self._opened is not None and self._opened[0] == held.round:
            raise SumRefused("a second sum of one round")
        self._opened = (held.round, total)
        sums = self._scheme.open(total, len(self._terms))
        self._check_count(sums)
        weight, keep = self._rule.own_weight(self._terms, self._kept(held.round), sums)
        so_far = self._memory.at(held.round) or self._memory.before(held.round)
        self._memory.keep(held.round, {**so_far, KEPT: keep})
        weighted = {key: value * weight for key, value in held.update.items()}
        return dataclasses.replace(rest_with_secure_sums(held), update=weighted)

    def _check_count(self, sums: Sequence[float]) -> None:
        """Where a term is 1 at every site its sum is known; a refusal says nothing of the site's own numbers."""
        counted, summed = self._rule.counted, self._sums.last
        if counted is not None and summed is not None and not abs(sums[counted] - len(summed.roster)) < 0.5:
            raise SumRefused("sums over another number of sites")

    def _kept(self, round: int) -> Any:
        return self._memory.before(round).get(KEPT)

    def _answer_of(self, instruction: Instruction) -> Answer:
        if self._held is None or self._held.round != instruction.round.number:
            raise SumRefused("nothing was trained in this round")
        return self._held


def rest_with_secure_sums(answer: Answer) -> Answer:
    """What of an answer to "train" leaves with its update in a run with secure sums, the update not yet masked."""
    kept = travelling(answer, "weigh")
    shown: dict[str, Any] = {
        name: {key: value for key, value in getattr(kept, name).items() if key not in spec.hidden}
        for name, spec in answer_fields().items()
        if spec.hidden
    }
    return dataclasses.replace(kept, **shown)


def travelling(answer: Answer, task: str) -> Answer:
    """What of an answer to "train" leaves in a run with secure sums: at once, or with its update ("weigh")."""
    fields = answer_fields().items()
    names = [name for name, spec in fields if spec.kind in ("name", "error") or spec.travels(task, secure=True)]
    return Answer(**{name: getattr(answer, name) for name in names})


def _order(instruction: Instruction, bound: bytes) -> SumOrder:
    sealed = instruction.sealed
    return SumOrder(instruction.round.number, int(sealed["attempt"]), dict(sealed["statements"]), bound)
