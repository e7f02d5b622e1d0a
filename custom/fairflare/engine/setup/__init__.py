# SPDX-License-Identifier: Apache-2.0
"""A run's configuration becomes objects, for every transport."""
