# SPDX-License-Identifier: Apache-2.0
"""Kinds of tasks: what several tasks share, each a base class."""
