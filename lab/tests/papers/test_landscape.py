# SPDX-License-Identifier: Apache-2.0
"""The loss around a model: exact on a quadratic, directions with the lengths of the model's filters."""

import torch

from fairflare_lab.functional.terms import filter_normalised, loss_grid


def model():
    generator = torch.Generator().manual_seed(3)
    return {
        "conv.weight": torch.randn(4, 2, 3, 3, generator=generator),
        "fc.weight": torch.tensor([[3.0, 4.0], [0.0, 0.0]]),
        "fc.bias": torch.ones(2),
    }


def test_every_filter_of_a_direction_is_as_long_as_the_models():
    parameters = model()
    found = filter_normalised(parameters, torch.Generator().manual_seed(0))
    assert found.keys() == parameters.keys() and not found["fc.bias"].any()
    for name in ("conv.weight", "fc.weight"):
        lengths = [value.flatten(1).norm(dim=1) for value in (found[name], parameters[name])]
        torch.testing.assert_close(*lengths)
    again = filter_normalised(parameters, torch.Generator().manual_seed(0))
    assert all(torch.equal(found[name], again[name]) for name in found)
    other = filter_normalised(parameters, torch.Generator().manual_seed(1))
    assert not torch.equal(found["conv.weight"], other["conv.weight"])


def test_a_larger_model_has_larger_directions():
    parameters = model()
    found = filter_normalised(parameters, torch.Generator().manual_seed(0))
    larger = filter_normalised({k: 10 * v for k, v in parameters.items()}, torch.Generator().manual_seed(0))
    torch.testing.assert_close(larger["conv.weight"], 10 * found["conv.weight"])


def test_the_grid_of_a_quadratic_is_known():
    w = {"a": torch.tensor([[1.0, -2.0]])}
    first, second = {"a": torch.tensor([[1.0, 0.0]])}, {"a": torch.tensor([[0.0, 2.0]])}

    def loss(parameters):
        return float((parameters["a"] ** 2).sum())

    steps = (-1.0, 0.0, 0.5)
    expected = [[(1 + a) ** 2 + (-2 + 2 * b) ** 2 for b in steps] for a in steps]
    assert loss_grid(loss, w, first, second, steps) == expected
    assert expected[1][1] == loss(w)
