# SPDX-License-Identifier: Apache-2.0
"""A session with a running FLARE server, as a user who may submit jobs: it is opened again when it breaks.

FLARE's ``ProdEnv`` would open a session per question, print to stdout and tell nothing of why a job failed; ``PocEnv``
would delete the POC that it finds running. So the session behind both is used directly.
"""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidJobDefinition,
    JobNotFound,
    NoConnection,
    NoReply,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.recipe import PotentialSecretWarning

from fairflare.core.errors import RunFailed, UserError

POLL = 2.0
"""Seconds between two questions for the job's status."""
CONNECT = 10.0
"""Seconds to reach the server."""
PATIENCE = 120.0
"""Seconds for which a server that was reached once may be away, as while it starts again."""
LOST = (NoConnection, NoReply, SessionClosed)


class Server:
    """A session with the FLARE server that is opened again when it breaks."""

    def __init__(self, user: str, kit: Path) -> None:
        self._user, self._kit = user, kit
        self._session: Session | None = None

    def __enter__(self) -> Server:
        try:
            self._connect()
        except NoConnection:
            raise RunFailed(f"the server of {self._kit} cannot be reached within {CONNECT:g} seconds") from None
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def connected(self) -> list[str]:
        return sorted(client.name for client in self._ask("get_system_info").client_info)

    def began(self) -> str:
        return str(self._ask("get_system_info").server_info.start_time)

    def submit(self, job: Path) -> str:
        """The id of the submitted ``job``. Not repeated when the connection breaks: it may have arrived."""
        try:
            with silent():
                return str(self._open().submit_job(str(job)))
        except (AuthorizationError, InvalidJobDefinition) as error:
            raise UserError(f"the server refuses the job: {_cause(error)}") from None
        except (*LOST, InternalError, RuntimeError) as error:
            raise RunFailed(f"the job could not be submitted: {_words(error)}") from None

    def meta(self, job: str) -> dict[str, Any]:
        return dict(self._ask("get_job_meta", job))

    def download(self, job: str, folder: Path) -> Path:
        return Path(self._ask("download_job_result", job, str(folder)))

    def _ask(self, method: str, *arguments: Any) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with silent():
                    return getattr(self._open(), method)(*arguments)
            except LOST as error:
                self._close()
                if time.monotonic() > until:
                    raise RunFailed(f"the server has been away for {PATIENCE:g} seconds: {_words(error)}") from None
                time.sleep(POLL)
            except AuthorizationError as error:
                raise UserError(f"the server refuses: {_words(error)}") from None
            except (JobNotFound, InternalError, RuntimeError) as error:
                raise RunFailed(f"the server answers: {_words(error)}") from None

    def _open(self) -> Session:
        if self._session is None:
            self._connect()
        return self._session

    def _connect(self) -> None:
        try:
            with silent():
                self._session = new_secure_session(self._user, str(self._kit), timeout=CONNECT, auto_login_max_tries=1)
        except (AuthenticationError, AuthorizationError) as error:
            raise UserError(f"the server refuses {self._user}: {_words(error)}") from None

    def _close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception), silent():  # whatever is wrong with it, it is not needed any more
                self._session.close()
        self._session = None


def _cause(error: BaseException) -> str:
    """What FLARE puts last: "...for the action 'submit_job PATH: user 'x' is not authorized'"."""
    return _words(error).rpartition(": ")[2].removesuffix("'")


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """FLARE prints to stdout, which is the result's place, and takes the SHA-256 of a user's own files for a secret."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", PotentialSecretWarning)
        yield
