# SPDX-License-Identifier: Apache-2.0
"""Pure mathematics of these studies."""
