# SPDX-License-Identifier: Apache-2.0
"""A join as a federation: its folds one after the other, then sums over hospitals (docs/join.md)."""
