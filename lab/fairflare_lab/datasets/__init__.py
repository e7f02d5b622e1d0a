# SPDX-License-Identifier: Apache-2.0
"""Published and simulated data sets; a file here that defines a concrete ``Task`` is found by being here."""
