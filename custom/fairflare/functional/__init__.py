# SPDX-License-Identifier: Apache-2.0
"""Pure mathematics on tensors and numbers, a paper's equation each."""
