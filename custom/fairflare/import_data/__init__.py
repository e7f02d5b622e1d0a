# SPDX-License-Identifier: Apache-2.0
"""``fairflare init``: what a folder holds, as lists that a run reads."""
