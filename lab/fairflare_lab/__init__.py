# SPDX-License-Identifier: Apache-2.0
"""The research distribution of FairFLARE: methods, data sets, tables of papers and sweeps, found by entry points."""
