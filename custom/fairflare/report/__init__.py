# SPDX-License-Identifier: Apache-2.0
"""Fairness metrics, figures and pages, made from the run folder alone."""
