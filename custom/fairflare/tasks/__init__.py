# SPDX-License-Identifier: Apache-2.0
"""What is learned and how it is scored: tasks, kinds of tasks, metrics, baselines and plans."""
