# SPDX-License-Identifier: Apache-2.0
"""A plain FLARE Client API script that reports what the FedISM rule weighs by: `meta` in the last call is all of it."""

import nvflare.client as flare
import torch
from network import Network
from sklearn.datasets import load_breast_cancer
from torch.nn.functional import cross_entropy

RADIUS = 0.1


def load(site: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A third of the Wisconsin breast cancer data; site-3's measurements are noisy."""
    data, k = load_breast_cancer(), int(site.split("-")[1]) - 1
    inputs = torch.tensor(data.data[k::3], dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    if k == 2:
        inputs += torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))
    return inputs, torch.tensor(data.target[k::3])


def sharpness(network: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """The loss of the received model, and how much it grows one step of length RADIUS up the gradient."""
    network.eval()
    parameters = list(network.parameters())
    loss = cross_entropy(network(inputs), targets)
    gradients = torch.autograd.grad(loss, parameters)
    length = torch.stack([g.norm() for g in gradients]).norm() + 1e-12
    with torch.no_grad():
        kept = [p.clone() for p in parameters]
        for parameter, gradient in zip(parameters, gradients):
            parameter += RADIUS * gradient / length
        grown = cross_entropy(network(inputs), targets)
        for parameter, value in zip(parameters, kept):
            parameter.copy_(value)
    return float(loss.detach()), float(grown - loss.detach())


def train(network: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, seed: int) -> None:
    """One epoch of SGD in batches of 32."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    for batch in order.split(32):
        optimizer.zero_grad()
        cross_entropy(network(inputs[batch]), targets[batch]).backward()
        optimizer.step()


def main() -> None:
    """Train in every round on what the server sends."""
    flare.init()
    inputs, targets = load(flare.get_site_name())
    network = Network()
    while flare.is_running():
        received = flare.receive()
        network.load_state_dict(received.params)
        loss, rise = sharpness(network, inputs, targets)
        train(network, inputs, targets, seed=received.current_round)
        flare.send(
            flare.FLModel(
                params=network.state_dict(),
                metrics={"loss": loss},
                meta={"n_examples": len(inputs), "scalars": {"sharpness": rise}},
            )
        )


if __name__ == "__main__":
    main()
