# SPDX-License-Identifier: Apache-2.0
"""Runs, comparisons of runs, and the decision whether to join."""
