# SPDX-License-Identifier: Apache-2.0
"""The suite's options, fixtures and order of files, for the tests of both distributions."""

pytest_plugins = ("suite",)
