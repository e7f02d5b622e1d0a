# SPDX-License-Identifier: Apache-2.0
"""Personal methods restated from their papers in NumPy, float64, without a line of the package.

A network is {"0.weight": (5, 6), "0.bias": (5,), "2.weight": (3, 5), "2.bias": (3,)}, with tanh in between and softmax
behind; every step is one of gradient descent on all examples.
"""

import numpy as np

HEAD = ("2.weight", "2.bias")


def loss_and_gradient(net, x, y):
    """Mean cross-entropy and its gradient, by hand."""
    hidden = np.tanh(x @ net["0.weight"].T + net["0.bias"])
    scores = hidden @ net["2.weight"].T + net["2.bias"]
    scores = scores - scores.max(1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    out = (np.exp(logs) - np.eye(scores.shape[1])[y]) / len(y)
    back = (out @ net["2.weight"]) * (1 - hidden**2)
    found = {"0.weight": back.T @ x, "0.bias": back.sum(0), "2.weight": out.T @ hidden, "2.bias": out.sum(0)}
    return -logs[np.arange(len(y)), y].mean(), found


def descended(net, step, by, keys=None):
    return {k: v - step * by[k] if keys is None or k in keys else v for k, v in net.items()}


def fedper(net, x, y, lr, steps):
    """Arivazhagan et al., Algorithm 1: all layers learn together."""
    for _ in range(steps):
        net = descended(net, lr, loss_and_gradient(net, x, y)[1])
    return net


def fedrep(net, x, y, lr, head_steps, steps):
    """Collins et al., Algorithm 1: the head for tau steps, then the representation."""
    for _ in range(head_steps):
        net = descended(net, lr, loss_and_gradient(net, x, y)[1], HEAD)
    for _ in range(steps):
        net = descended(net, lr, loss_and_gradient(net, x, y)[1], ("0.weight", "0.bias"))
    return net


def mixture(alpha, v, w):
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in w}


def apfl(w, v, alpha, x, y, lr, steps, adapt):
    """Deng et al., Algorithm 1: w, v, alpha after the steps; alpha moves in the first one alone."""
    for step in range(steps):
        by = loss_and_gradient(mixture(alpha, v, w), x, y)[1]
        moved = descended(v, lr * alpha, by)
        if adapt and step == 0:
            alpha = min(max(alpha - lr * sum(float(((v[k] - w[k]) * by[k]).sum()) for k in w), 0.0), 1.0)
        w, v = descended(w, lr, loss_and_gradient(w, x, y)[1]), moved
    return w, v, alpha


def pfedme(w, x, y, lr, lam, eta, inner, steps):
    """T Dinh et al., Algorithm 1: w and theta after R = ``steps`` batches."""
    theta = dict(w)
    for _ in range(steps):
        for _ in range(inner):
            by = loss_and_gradient(theta, x, y)[1]
            theta = {k: theta[k] - lr * (by[k] + lam * (theta[k] - w[k])) for k in w}
        w = {k: w[k] - eta * lam * (w[k] - theta[k]) for k in w}
    return w, theta


def maxfl(losses, required):
    """Cho et al., Algorithm 1: q_k and the weights."""
    sigmoid = 1 / (1 + np.exp(-(np.asarray(losses) - np.asarray(required))))
    q = sigmoid * (1 - sigmoid)
    return q, q / q.sum()


def ifca(starts, steps, losses):
    """Ghosh et al., Algorithm 1, option II, rounds of which each gives every site a step and a loss per cluster.

    Args:
        starts: k models (P,) and the sites' first clusters (K,).
        steps: (T, K, P): what site k adds in round t to the model that it was sent.
        losses: (T, K, k): of the clusters' new models.
    """
    (models, place), rounds = starts, []
    for moved, measured in zip(steps, losses):
        trained = np.array([models[j] for j in place]) + moved
        models = [trained[place == j].mean(0) if (place == j).any() else models[j] for j in range(len(models))]
        place = np.argmin(measured, axis=1)
        rounds.append((models, place))
    return rounds


def fedamp(models, alpha, sigma):
    """Huang et al., Algorithm 1: u_i of the models (K, P), A(x) = 1 - exp(-x / sigma)."""
    clouds = []
    for i, own in enumerate(models):
        xi = [alpha * np.exp(-((own - other) ** 2).sum() / sigma) / sigma for other in models]
        xi[i] = 0.0
        clouds.append((1 - sum(xi)) * own + sum(x * other for x, other in zip(xi, models)))
    return np.array(clouds)
