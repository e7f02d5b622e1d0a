# SPDX-License-Identifier: Apache-2.0
"""What a server may ask of its sites: one file for each exchange, with both halves and what may leave."""
