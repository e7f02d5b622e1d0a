# SPDX-License-Identifier: Apache-2.0
"""Fairness metrics, figures and pages, made from the run folder alone."""

REPORT, PAGE = "report.json", "report.html"
EDITIONS, EVIDENCE = "editions", "evidence"
"""Folders of a run: of the pages for single sites, of the documents for reviewers."""
EVALUATION, EVALUATION_PAGE = "evaluation.json", "evaluation.html"
"""What an evaluation of a run's model elsewhere writes."""
