# SPDX-License-Identifier: Apache-2.0
"""What each method can be trained on in a test of all of them: the smallest table, or images where it needs them."""

TABLE = ("support2:dirichlet", {"model": "linear", "batch_size": 512})
IMAGES = ("digits:small", {"images_per_site": 24, "test_images": 20, "site_test_images": 8, "batch_size": 24})
SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
OTHERS = {
    "moon": (TABLE, {"model": "mlp"}),
    "fedproc": (TABLE, {"model": "mlp"}),
    "fedproto": (TABLE, {"model": "mlp"}),
    "fedper": (TABLE, {"model": "mlp"}),
    "fedrep": (TABLE, {"model": "mlp"}),
    "scaffold": (TABLE, SGD),
    "glm": (TABLE, {"model": "regression"}),
    "fedrdn": (IMAGES, {}),
    "fedbn": (IMAGES, {"model": "small-cnn-bn"}),
    "silobn": (IMAGES, {"model": "small-cnn-bn"}),
}
"""Method -> what it is trained on, and its settings there."""


def task_of(method):
    """Task with preset, and settings, of four sites named site-1 to site-4."""
    (task, values), more = OTHERS.get(method, (TABLE, {}))
    return task, {**values, **more, "n_sites": 4}
