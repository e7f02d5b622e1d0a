# SPDX-License-Identifier: Apache-2.0
"""How a round's answers become the next model: in the clear, or as sums that hide every site's own part."""
