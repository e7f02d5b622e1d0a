# SPDX-License-Identifier: Apache-2.0
"""What a hospital brings: readers, splits, site files, columns of tables, tensors."""
