# SPDX-License-Identifier: Apache-2.0
"""The filter in a stock job's place, as FLARE calls it: on a weight difference and nothing else, for so many rounds."""

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext

from fairflare.flare.site_noise import SiteNoiseFilter


def sent(filter, kind=DataKind.WEIGHT_DIFF, value=3.0):
    data = {"w": np.full((200, 50), value, dtype=np.float32), "b": np.full(4, value, dtype=np.float64)}
    return from_shareable(filter.process(DXO(kind, data).to_shareable(), FLContext())).data


def test_a_difference_is_clipped_and_noised_and_weights_are_left_alone():
    found = sent(SiteNoiseFilter(clip=1.0, noise=0.5, rounds=2))
    assert found["w"].dtype == np.float32 and found["b"].dtype == np.float64 and found["w"].shape == (200, 50)
    assert found["w"].std() == pytest.approx(0.5, rel=0.05) and abs(found["w"].mean() - 0.01) < 0.03, "1 / 100 each"
    assert (sent(SiteNoiseFilter(clip=1.0, noise=0.5, rounds=2), DataKind.WEIGHTS)["w"] == 3.0).all()


def test_the_mean_over_sites_has_the_noise_and_nobody_all_of_it():
    filters = [SiteNoiseFilter(clip=1.0, noise=0.5, rounds=1, sites=5, colluders=2) for _ in range(5)]
    mean = np.mean([sent(one, value=0.0)["w"] for one in filters[:3]], axis=0) * 3 / 5
    assert mean.std() == pytest.approx(0.5 / 5, rel=0.05), "without what two colluders added"


def test_no_more_leaves_than_was_planned():
    filter = SiteNoiseFilter(clip=1.0, noise=1.0, rounds=1)
    sent(filter)
    with pytest.raises(RuntimeError, match="privacy budget spent: 1 differences have left"):
        sent(filter)
    with pytest.raises(ValueError, match="colluders < sites"):
        SiteNoiseFilter(clip=1.0, noise=1.0, rounds=1, sites=2, colluders=2)
