# SPDX-License-Identifier: Apache-2.0
"""The only room that imports nvflare: Controller, Executor, Aggregator, Recipe and the simulator run."""
