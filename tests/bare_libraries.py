# SPDX-License-Identifier: Apache-2.0
"""This environment's libraries without either distribution of this repository, as at a hospital that has neither."""

import sysconfig
from pathlib import Path

OWN = ("fairflare", "__editable__")


def link_libraries(folder):
    """Links in the new ``folder`` to each installed library, its metadata included; returns the folder."""
    folder.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if not path.name.startswith(OWN) and path.suffix != ".pth":
                (folder / path.name).symlink_to(path)
    return folder
