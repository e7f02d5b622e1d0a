# SPDX-License-Identifier: Apache-2.0
"""Submits a job as FLARE's tools never do: unsigned, or changed after it was signed. USER KIT JOB unsigned|changed"""

import sys
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.fuel.hci.client import file_transfer

CLIENT = Path("app_sites") / "config" / "config_fed_client.json"


def main(user: str, kit: str, job: str, how: str) -> None:
    """Print the job's id."""
    sign = file_transfer.sign_folders

    def forge(folder: str, *arguments: object, **options: object) -> None:
        if how == "changed":
            sign(folder, *arguments, **options)
            file = Path(folder) / CLIENT
            text = file.read_text()
            file.write_text(text.replace('"min_count": 10', '"min_count": 0'))
            assert file.read_text() != text

    file_transfer.sign_folders = forge
    session = new_secure_session(user, kit)
    print(session.submit_job(job))
    session.close()


main(*sys.argv[1:])
