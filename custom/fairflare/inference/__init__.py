# SPDX-License-Identifier: Apache-2.0
"""A model in use: predictions from a run's folder, and files of the model that other programs load."""
