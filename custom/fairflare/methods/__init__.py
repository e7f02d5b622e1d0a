# SPDX-License-Identifier: Apache-2.0
"""The methods: declarations that name their parts, one file per family."""
