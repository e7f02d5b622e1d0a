# SPDX-License-Identifier: Apache-2.0
"""A join as a federation: its folds one after the other, then three sums over hospitals (docs/join.md)."""
