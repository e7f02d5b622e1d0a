# SPDX-License-Identifier: Apache-2.0
"""Noise at the level of a hospital as a FLARE filter, for jobs that are not this package's own."""

from __future__ import annotations

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fairflare.privacy.differential_privacy import Draws, Mechanism, bounded, epsilon_of, share


class SiteNoiseFilter(DXOFilter):
    """Clips a site's weight difference and adds Gaussian noise; sends no more differences than were planned.

    As a task result filter of a client. In a plain job the server sees each difference: take ``sites=1``, with which
    one site adds all of the noise. With ``sites=K`` it adds its share of that of a mean over K, which protects only
    where the server sees nothing but the mean (secure aggregation), and the mean is uniform.
    """

    def __init__(
        self, clip: float, noise: float, rounds: int, sites: int = 1, colluders: int = 0, delta: float = 1e-5
    ) -> None:
        """
        Args:
            clip: the largest norm of a difference, > 0.
            noise: standard deviation over ``clip``, > 0: of the mean over ``sites`` beside what ``colluders`` know.
            rounds: differences that may leave, at least 1; then epsilon is what the log says.
            sites: in the mean, at least 1.
            colluders: of them, that may tell their noise or drop out.
            delta: the chance that goes with epsilon.

        Raises:
            ValueError: a value out of these bounds.
        """
        super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])
        if min(clip, noise) <= 0 or rounds < 1 or not 0 <= colluders < sites or not 0 < delta < 1:
            raise ValueError("expected clip, noise > 0, rounds >= 1, 0 <= colluders < sites and 0 < delta < 1")
        self.clip, self.noise, self.rounds, self.sites, self.colluders = clip, noise, rounds, sites, colluders
        self.delta, self._sent = delta, 0
        self._draws = Draws(None)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """The difference, bounded and with noise, in its own types; raises RuntimeError once all rounds were sent."""
        if self._sent >= self.rounds:
            raise RuntimeError(f"privacy budget spent: {self.rounds} differences have left")
        self._sent += 1
        most, deviation = share(self.clip, self.noise, self.sites, self.colluders)
        found = bounded(dxo.data, most * self.sites, deviation * self.sites, self._draws)
        dxo.data = {key: found[key].numpy().astype(value.dtype) for key, value in dxo.data.items()}
        spent = epsilon_of([Mechanism(self.noise, 1.0, self._sent)], self.delta)
        self.log_info(fl_ctx, f"difference {self._sent} of {self.rounds}: epsilon {spent:.3f} at delta {self.delta:g}")
        return dxo
