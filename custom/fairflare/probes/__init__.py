# SPDX-License-Identifier: Apache-2.0
"""What a site measures on a model and reports as a few numbers: one file per idea or family."""
