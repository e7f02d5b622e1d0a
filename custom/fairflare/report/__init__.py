# SPDX-License-Identifier: Apache-2.0
"""Fairness metrics, figures and pages, made from the run folder alone."""

REPORT, PAGE = "report.json", "report.html"
EDITIONS = "editions"
"""The folder of a run in which the pages for single sites lie."""
EVALUATION, EVALUATION_PAGE = "evaluation.json", "evaluation.html"
"""What an evaluation of a run's model elsewhere writes."""
