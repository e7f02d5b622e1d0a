# SPDX-License-Identifier: Apache-2.0
"""FedGA and FedDG-GA: sites that lose most when their model is averaged with the others' weigh more in the next round.

G_k = F_k(w^{t+1}) - F_k(w_k)              on the site's own data: the average's loss minus its own model's
a_k <- a_k + s_t H_k / (K max |H|)         FedGA: H = G;   FedDG-GA: H = G - mean G, without the K
a_k clipped to [0, 1] (FedDG-GA: at 0) and normalised;   s_t = (1 - (t - 1) / T) s;   a starts at 1 / K

F_k(w_k) is known in round t, F_k(w^{t+1}) one round later: round t + 1 is the first that the gap of t can weigh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fairflare.aggregators.base import Notes, State, WeighingRule, convex
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, Round, Weights
from fairflare.core.validation import Range
from fairflare_lab.functional.terms import with_newcomers

PAIRS: dict[str, tuple[str, str]] = {"loss": ("loss", "trained_loss"), "error": ("received_error", "trained_error")}
"""Setting ``gap`` -> what a site sends of the received model and of its own trained one."""
THIRD = 3
"""The authors' code divides by the number of sites that its experiments had."""
GENERALIZATION = (
    "Zhang et al.: Federated Domain Generalization with Generalization Adjustment. CVPR 2023. "
    "https://openaccess.thecvf.com/content/CVPR2023/html/Zhang_Federated_Domain_Generalization_With_Generalization_Adjustment_CVPR_2023_paper.html"
)
PROBES = ("loss", "trained-loss", "local-error")
SHARED = {key: (f"probe.loss.{key}", f"probe.trained-loss.{key}") for key in ("loss_split", "probe_batch")}
"""Both losses of a gap are measured alike."""


@method(
    "fedga",
    title="FedGA",
    summary="Weighs sites more that lose most by being averaged; the gap of the losses, in small steps.",
    paper=GENERALIZATION,
    probes=PROBES,
    settings={"loss_split": "val"},
    shared=SHARED,
)
@dataclass(frozen=True)
class GeneralizationAdjustment(WeighingRule):
    """Weights from generalization gaps (Zhang et al., CVPR 2023, "... with Generalization Adjustment").

    Args:
        form: "fedga" or "feddg-ga", see above.
        step: s, >= 0; 0 leaves every site at 1 / K.
        gap: "loss", or "error", 1 minus the metric, on the validation split.
        variant: "fl4health" clips FedDG-GA at 1 as well. "reference" is the authors' code: H = G, a third in place of
            1 / K, a first step of (1 + 1 / T) s. "ffl4mia" is the code behind FedISM+'s tables: centred, divided by K,
            s_t = (1 - t / T) s, normalised first and clipped then.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("gap", "Generalization gap", meaning="Loss of the average minus that of the site's own model before it."),
    )
    form: Literal["fedga", "feddg-ga"] = "fedga"
    step: Annotated[float, Range(0, 1e3)] = 0.2
    gap: Literal["loss", "error"] = "loss"
    variant: Literal["paper", "reference", "fl4health", "ffl4mia"] = "paper"

    @property
    def wanted(self) -> tuple[str, ...]:
        return PAIRS[self.gap]

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """a of the sites that are here; all known sites keep theirs, and a newcomer stands at their mean."""
        before = with_newcomers(state.get("a", {}), [r.site for r in replies])
        after = self._moved(before, self._gaps(replies, state), info.round)
        weights = convex({r.site: after[r.site] for r in replies}, replies)
        return weights, {"a": after, "trained": {r.site: r.scalars[self.wanted[1]] for r in replies}}

    def round_notes(self, weights: Weights, replies: Sequence[Reply], before: State, after: State, info: Info) -> Notes:
        return {"gap": gaps} if (gaps := self._gaps(replies, before)) else {}

    def _gaps(self, replies: Sequence[Reply], state: State) -> dict[str, float]:
        """Site -> F_k(w^t) - F_k(w_k of the round before), for the sites that took part in both."""
        trained = state.get("trained", {})
        return {r.site: r.scalars[self.wanted[0]] - trained[r.site] for r in replies if r.site in trained}

    def _moved(self, a: Mapping[str, float], gaps: Mapping[str, float], round: Round) -> Weights:
        if not gaps:
            return dict(a)
        mean = sum(gaps.values()) / len(gaps) if self._centred else 0.0
        centred = {site: gap - mean for site, gap in gaps.items()}
        most = max(map(abs, centred.values()))
        if not most:
            return dict(a)
        step = self._step(round, len(gaps)) / most
        return self._clipped({site: value + step * centred.get(site, 0.0) for site, value in a.items()})

    @property
    def _centred(self) -> bool:
        return self.variant == "ffl4mia" or (self.form == "feddg-ga" and self.variant != "reference")

    def _step(self, round: Round, count: int) -> float:
        """s_t over what it is divided by; the gap is that of the round before, the first of which is 0."""
        t = round.number - 2 + {"reference": -1, "ffl4mia": 1}.get(self.variant, 0)
        size = self.step * max(1 - t / round.total, 0.0)
        if self.variant == "reference":
            return size / THIRD
        return size / count if self.form == "fedga" or self.variant == "ffl4mia" else size

    def _clipped(self, a: Mapping[str, float]) -> Weights:
        """In [0, ...] and, but for FFL4MIA's order, with a sum of 1; as before where nothing is left."""
        if self.variant == "ffl4mia":
            return {site: max(value, 0.0) for site, value in _normalised(a).items()}
        high = 1.0 if self.form == "fedga" or self.variant != "paper" else float("inf")
        return _normalised({site: min(max(value, 0.0), high) for site, value in a.items()})


def _normalised(a: Mapping[str, float]) -> Weights:
    total = sum(a.values())
    return {site: value / total for site, value in a.items()} if total > 0 else dict(a)


method(
    "feddg-ga",
    title="FedDG-GA",
    summary="As FedGA with centred gaps: sites above the mean gap weigh more, the others less.",
    rule="fedga",
    paper=GENERALIZATION,
    probes=PROBES,
    settings={"loss_split": "val", "form": "feddg-ga"},
    shared=SHARED,
)
