# SPDX-License-Identifier: Apache-2.0
"""Published tables as they lie on disk."""
