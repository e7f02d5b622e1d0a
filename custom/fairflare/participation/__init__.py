# SPDX-License-Identifier: Apache-2.0
"""Which of the training sites take part in a round, one file per idea."""
