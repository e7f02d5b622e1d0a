# SPDX-License-Identifier: Apache-2.0
"""Secure sums of encrypted numbers."""
