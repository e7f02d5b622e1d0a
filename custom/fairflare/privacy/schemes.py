# SPDX-License-Identifier: Apache-2.0
"""Secure sums by name and their limits: what a configuration is checked by where a run has none."""

NONE = "none"
SCHEMES = (NONE, "masks")
LEAST = 3
"""Sites in a sum: of two each would learn the other's number by subtracting its own."""
AUTO, ALL = "auto", "all"
NEIGHBOURS = f"{AUTO}|{ALL}|[1-9][0-9]{{0,3}}"
"""What the run key ``mask_neighbours`` may be: as many as are safe, all others, or the fewest."""
