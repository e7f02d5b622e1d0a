# SPDX-License-Identifier: Apache-2.0
"""``python -m fairflare`` is the command line."""

from fairflare.cli.main import main

if __name__ == "__main__":
    main()
