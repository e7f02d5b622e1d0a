# SPDX-License-Identifier: Apache-2.0
"""Sums over the sites of which nobody learns a summand."""
