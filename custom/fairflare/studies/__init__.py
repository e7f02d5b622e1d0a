# SPDX-License-Identifier: Apache-2.0
"""Runs and what is asked of several: comparison, contribution, free riders, search, papers."""
