# SPDX-License-Identifier: Apache-2.0
"""Server optimizers: how the server steps along the combined update, one file per family."""
