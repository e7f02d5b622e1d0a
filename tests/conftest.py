# SPDX-License-Identifier: Apache-2.0
"""One torch thread, as in every run: small tensors gain nothing from more, and lose much on a busy machine."""

import torch

torch.set_num_threads(1)
