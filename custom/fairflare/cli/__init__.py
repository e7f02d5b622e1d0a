# SPDX-License-Identifier: Apache-2.0
"""The command line: click commands, options, what the terminal shows, and `fairflare new`'s templates."""
