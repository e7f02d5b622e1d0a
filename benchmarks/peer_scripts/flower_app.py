# SPDX-License-Identifier: Apache-2.0
"""Flower's FedAvg over Ray: ``flower_app.py ROUNDS SITES``."""

import sys

import torch
from common import Network, evaluate, tensors, train
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

ROUNDS, SITES = int(sys.argv[1]), int(sys.argv[2])


class Client(NumPyClient):
    """One site."""

    def __init__(self, site: str) -> None:
        self.site, self.network = site, Network()

    def fit(self, parameters, config):
        """Receive, evaluate, train, send."""
        keys = self.network.state_dict().keys()
        self.network.load_state_dict({key: torch.from_numpy(value) for key, value in zip(keys, parameters)})
        accuracy = evaluate(self.network, self.site)
        train(self.network, self.site, seed=int(config["round"]))
        sent = [value.numpy() for value in self.network.state_dict().values()]
        return sent, len(tensors(self.site)["train_targets"]), {"accuracy": accuracy}


def client(context: Context):
    """The client of a node."""
    return Client(f"site-{int(context.node_config['partition-id']) + 1}").to_client()


def server(context: Context) -> ServerAppComponents:
    """Plain FedAvg over all sites, without evaluation rounds."""
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=SITES,
        min_available_clients=SITES,
        initial_parameters=ndarrays_to_parameters([value.numpy() for value in Network().state_dict().values()]),
        on_fit_config_fn=lambda number: {"round": number},
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


if __name__ == "__main__":
    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=SITES,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
