# SPDX-License-Identifier: Apache-2.0
"""What is asked of several runs: contribution, free riders, search, papers' tables, evidence."""
