# SPDX-License-Identifier: Apache-2.0
"""What data sets share: base classes, ways to deal examples out to sites, anatomy, and rendered data on disk."""
