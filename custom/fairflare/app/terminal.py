# SPDX-License-Identifier: Apache-2.0
"""The two streams of the terminal: results go to ``out``, progress and notes to ``err``."""

import re
from typing import Any

from rich.console import Console
from rich.text import Text

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What commands a terminal, or turns the direction of what follows, and shows nothing itself; not tab and line feed."""


def clean(text: str) -> str:
    """``text`` as it may be shown: what it quotes, such as a file's name, must not command the terminal."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


class Terminal(Console):
    """A console that shows no text's control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich does, of the clean text."""
        return super().render_str(clean(text), **options)


out = Terminal(highlight=False)
err = Terminal(stderr=True, highlight=False)
