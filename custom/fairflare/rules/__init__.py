# SPDX-License-Identifier: Apache-2.0
"""Server rules: one file each, pure functions from accepted replies and state to the next model."""
