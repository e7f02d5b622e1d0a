# SPDX-License-Identifier: Apache-2.0
"""Values and small services that every room may use."""
