# SPDX-License-Identifier: Apache-2.0
"""What simulated data sets share: the anatomy, poor image quality, and rendered data on disk."""
