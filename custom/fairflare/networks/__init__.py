# SPDX-License-Identifier: Apache-2.0
"""Networks: the package's own, MONAI's, and those that a user brings."""
