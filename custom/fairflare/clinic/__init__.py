# SPDX-License-Identifier: Apache-2.0
"""What a hospital brings: data, partitions, corruptions, networks and the tasks made of them."""
