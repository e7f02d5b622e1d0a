# SPDX-License-Identifier: Apache-2.0
"""Ways of local training: one file per idea or family."""
