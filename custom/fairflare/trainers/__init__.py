# SPDX-License-Identifier: Apache-2.0
"""Ways of local training: one file each."""
