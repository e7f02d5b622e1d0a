# SPDX-License-Identifier: Apache-2.0
"""The command line: click commands, options, and what the terminal shows."""
