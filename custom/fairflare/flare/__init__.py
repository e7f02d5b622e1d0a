# SPDX-License-Identifier: Apache-2.0
"""FLARE's Controller, Executor, Aggregator, Recipe and simulator: the only room that imports nvflare."""
