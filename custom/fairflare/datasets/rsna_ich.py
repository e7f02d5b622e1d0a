# SPDX-License-Identifier: Apache-2.0
"""Which kind of intracranial haemorrhage? FedISM+'s CT slices of the RSNA challenge of 2019, which the user brings.

    ICH_20/
        train.csv                       id,class (of 19,998 slices)
        test.csv                        id,class (of 5,002 slices)
        train/clean/<id>.png            224x224, brain window
        train/gaussian3_16_4_dir1.0/    <id>.png of the corrupted sites; severity 3, 16 clean sites, 4 corrupted
        test/clean/<id>.png
        test/gaussian_1/<id>.png        ... to gaussian_5; optional
        dict_users_noniid_dir1.0_CorruptedNum4.npy      for partition=file

The tables come with github.com/wnn2000/FFL4MIA, the slices from the challenge's page on Kaggle. The tables do not say
which slices are of one patient, so that a patient's slices may lie in several splits and at several sites.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.datasets.kinds.quality import QualityShift


@dataclass(frozen=True)
class RsnaIch(QualityShift):
    """Quality shift on head CT with FedISM+'s tables and rule; see ``QualityShift`` for the options."""

    name = "rsna-ich"
    title = "RSNA ICH: subtype of an intracranial haemorrhage"
    real = "the CT slices and their labels (RSNA 2019), files that you bring"
    simulated = "the hospitals, a label-skewed split of the slices, and the noise of the last ones"
    classes = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
    folder = "ICH_20"
    suffix = ".png"
