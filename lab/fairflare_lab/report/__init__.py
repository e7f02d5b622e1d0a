# SPDX-License-Identifier: Apache-2.0
"""Sections and pages of these studies, and the templates of the evidence pack."""
