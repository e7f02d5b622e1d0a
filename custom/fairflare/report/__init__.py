# SPDX-License-Identifier: Apache-2.0
"""Fairness metrics, figures and the report of a finished run."""
