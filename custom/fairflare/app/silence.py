# SPDX-License-Identifier: Apache-2.0
"""A display that shows nothing, for who runs a federation from Python and looks at the result alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fairflare.app.progress import Follower


class Silent:
    """In the place of the terminal, see ``console.shown_by``."""

    def note(self, text: str) -> None:
        """A remark, which nobody reads; the report holds what matters."""

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Something of which nobody knows how long it takes."""
        yield

    def progress(
        self, title: str, rounds: int, sites: int, starting: bool = False, headline: str = ""
    ) -> SilentProgress:
        """In the place of a progress bar of the run's own."""
        return SilentProgress()


class SilentProgress(Follower):
    """In the place of ``progress.Progress``."""

    def __enter__(self) -> SilentProgress:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def preparing(self, site: str) -> None:
        """A site's data are about to be built."""

    def found(self, site: str, finding: object) -> None:
        """Preflight found something at a site; errors end the run and are named there."""
