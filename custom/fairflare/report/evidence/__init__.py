# SPDX-License-Identifier: Apache-2.0
"""The evidence pack of a run: documents for reviewers, made of one table of items, report, log and a human's YAML."""
