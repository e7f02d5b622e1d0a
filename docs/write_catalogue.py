# SPDX-License-Identifier: Apache-2.0
"""Writes custom/fairflare/app/catalogue.json, which `fairflare list` reads; `--check` compares instead.

It holds what the registry says of the package's own methods, parts and tasks, whatever plugins are set.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "custom"))

from fairflare.app import catalogue  # noqa: E402  (the package of this checkout)
from fairflare.core import plugins  # noqa: E402


def main() -> int:
    """Write the file, or with ``--check`` return 1 where it is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    os.environ.pop(plugins.VARIABLE, None)
    new = catalogue.content()
    old = catalogue.FILE.read_text(encoding="utf-8") if catalogue.FILE.is_file() else ""
    if check and new != old:
        print("app/catalogue.json: not what the registry holds; run python docs/write_catalogue.py")
        return 1
    if not check:
        catalogue.FILE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
