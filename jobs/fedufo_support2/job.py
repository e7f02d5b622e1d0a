# SPDX-License-Identifier: Apache-2.0
"""FLARE recipe: `python job.py` runs in the simulator, `--export --export-dir D` writes the job folder."""

from fairflare.flare.job import main

if __name__ == "__main__":
    main("fedufo", "support2", "fedufo_support2", group_by="label+sex")
