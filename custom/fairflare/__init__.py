# SPDX-License-Identifier: Apache-2.0
"""FairFLARE: fair federated learning for hospitals, as NVIDIA FLARE jobs."""

__version__ = "0.1.0"
