# SPDX-License-Identifier: Apache-2.0
"""The two streams of the terminal: results go to ``out``, progress and notes to ``err``."""

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
