# SPDX-License-Identifier: Apache-2.0
"""Data as they should not be, and often are: what `init` must refuse in one line, or read as the truth says.

Each builder writes below a folder and returns parts of the refusal; an empty tuple: it must be read, and no patient of
its ``patients`` may be in two splits.
"""

import numpy as np
import pandas as pd
from PIL import Image

from hospital_folders import Drawn, grid
from hospital_tables import cohort


def write(root, table, name="cohort.csv", **how):
    table.to_csv(root / name, index=False, **how)


def numbers_and_words(root):
    grid(root, ("01", "02", "03"), ("infected", "uninfected"), lambda a, b, k: (f"{a}/{b}/{k}.png", ""), n=6)
    return ("--site folder1 --label folder2",)


def one_level_of_cities(root):
    drawn = Drawn()
    for city in ("Bern", "Graz", "Wien"):
        for k in range(9):
            drawn.save(root / city / f"{k}.png")
    return ("they are hospitals, and nothing says the labels", "--label folder1")


def modalities(root):
    grid(root, ("CT", "MR"), ("benign", "malignant"), lambda a, b, k: (f"{a}/{b}/{k}.png", ""), n=6)
    return ("looks like modalities", "--site folder1")


def ground_truth_folder(root):
    grid(root, ("Original", "Ground Truth"), ("polyp",), lambda a, b, k: (f"{a}/{k}.png", ""), n=12)
    return ("may hold masks",)


def table_beside_hospitals(root):
    """Folders are hospitals, one table at the root has the labels."""
    drawn, rows = Drawn(), []
    for site in ("Klinik A", "Klinik B"):
        for k in range(12):
            drawn.save(root / site / f"{site[-1]}{k:03d}.png", k % 2)
            rows.append({"image": f"{site}/{site[-1]}{k:03d}.png", "label": ("ill", "well")[k % 2]})
    write(root, pd.DataFrame(rows))
    return ()


def same_folder_at_two_hospitals(root):
    """Folder 1000 is another person at either hospital, and the table has one row for both."""
    drawn = Drawn()
    for site in ("Klinik A", "Klinik B"):
        for p in range(1000, 1010):
            drawn.save(root / site / str(p) / "a.png", p % 2)
    write(root, pd.DataFrame({"patient": range(1000, 1010), "label": [("ill", "well")[p % 2] for p in range(10)]}))
    return ("names several folders",)


def ages_that_are_file_names(root):
    """Images 1.png to 60.png, and a column of ages whose numbers are names of files, too."""
    drawn, rows = Drawn(), []
    for k in range(1, 61):
        drawn.save(root / f"{k}.png", k % 2)
        rows.append({"age": 20 + k % 40, "image_id": k, "label": ("ill", "well")[k % 2]})
    write(root, pd.DataFrame(rows))
    return ()


def split_and_other_tables(root):
    for name in ("train", "test", "external"):
        write(root, cohort(60), f"{name}.csv")
    return ("external.csv", "named by sites or by splits")


def the_table_twice(root):
    write(root, cohort())
    cohort().to_excel(root / "cohort.xlsx", index=False)
    return ("two formats",)


def doubled_rows(root):
    write(root, pd.concat([cohort(), cohort()]))
    return ("exact copies", "--patient")


def totals_row(root):
    table = cohort().astype(object)
    table.loc[len(table)] = ["A", "", "", "", "", "", "Total"]
    write(root, table)
    return ("'Total' has 1 of 121 rows", "--missing Total")


def code_among_labels(root):
    table = cohort()
    table.loc[::10, "died"] = -9
    write(root, table)
    return ("'-9'", "code for missing", "--missing died=-9")


def code_among_numbers(root):
    table = cohort()
    table.loc[::9, "crp"] = 9999
    write(root, table)
    return ("9999 stands 14 times", "--missing crp=9999", "--keep crp")


def words_for_unknown_among_labels(root):
    write(root, cohort().assign(died=["0", "1", "1", "k.A."] * 30))
    return ("'k.A.' among 0, 1", "--missing died=k.A.")


def nine_among_labels(root):
    write(root, cohort().assign(died=[0, 1, 1, 9] * 30))
    return ("'9' among 0, 1", "--missing died=9")


def nine_among_grades(root):
    write(root, cohort(n=128).assign(died=[0, 1, 2, 3, 4, 5, 6, 9] * 16))
    return ("'9' among 0, 1, 2, 3", "--missing died=9")


def nine_among_codes(root):
    write(root, cohort().assign(sex=[0, 1, 1, 9] * 30))
    return ("9 stands 30 times", "--missing sex=9")


def other_codes_at_one_site(root):
    """0 and 1 at A, 1 and 2 at B and C."""
    table = cohort()
    table.loc[table["hospital"] != "A", "died"] += 1
    write(root, table)
    return ("labels differ between sites (A: 0, 1; B: 1, 2", "--classes 0,1,2")


def unknown_split_word(root):
    table = cohort()
    table["split"] = ["train", "train", "val", "external test"] * 30
    write(root, table)
    return ("expected training, validation or testing, got 'external test'",)


def blank_patients(root):
    """Excel's merged cells: the patient stands in the first row of several."""
    table = cohort()
    table["patient_id"] = [f"K{k // 4:03d}" if k % 4 == 0 else "" for k in range(len(table))]
    write(root, table)
    return ("patient_id: 90 of 120 rows have none", "--patient none")


def units_in_cells(root):
    table = cohort()
    table["crp"] = [f"{value} mg/l" if k % 2 else value for k, value in enumerate(table["crp"])]
    write(root, table)
    return ("crp: cells such as", "mg/l' hold numbers with signs or units", "--leave-out crp")


def signs_in_few_cells(root):
    """Below what the laboratory can measure, and a minus that Word has made longer."""
    table = cohort().astype(object)
    table.loc[::15, "crp"] = "<5"
    table.loc[::30, "crp"] = "−2"
    write(root, table)
    return ("crp: 8 cells such as '−2' hold numbers with signs", "--missing 'crp=−2,crp=<5'")


def codes_that_begin_with_zero(root):
    write(root, cohort().assign(kreis=["01067", "10115", "80331", "04109"] * 30))
    return ("kreis: cells such as '01067' begin with 0", "--categories kreis", "--keep kreis")


def ages_that_are_none(root):
    """A year of birth, and a code that stands once."""
    table = cohort()
    table.loc[[3, 5], "age"] = 1953, 999
    write(root, table)
    return ("age: 2 cells such as 1953 are no years of age", "--missing age=1953,age=999", "--keep age")


def patients_that_excel_has_cut(root):
    write(root, cohort().assign(patient_id=[f"1.{k // 12:05d}E+12" for k in range(120)]))
    return ("patient_id: 1.00000E+12: Excel has cut these numbers",)


def names_that_become_one(root):
    write(root, cohort(sites=("CHU (1)", "CHU [1]", "C")))
    return ("would both be",)


def path_out_of_the_folder(root):
    Drawn().save(root.parent / "outside.png")
    entries = ", ".join(f'{{"image": "../outside.png", "label": "{"ab"[k % 2]}"}}' for k in range(9))
    (root / "site-1.json").write_text(f'{{"training": [{entries}]}}')
    return ("expected paths inside",)


def image_in_two_splits(root):
    drawn = Drawn()
    for k in range(12):
        drawn.save(root / f"{k}.png", k % 2)
    entry = '{{"image": "{}.png", "label": "{}"}}'
    lists = [", ".join(entry.format(k, "ab"[k % 2]) for k in own) for own in (range(10), range(8, 12))]
    (root / "site-1.json").write_text(f'{{"training": [{lists[0]}], "testing": [{lists[1]}]}}')
    return ("2 images are in two splits",)


def dates_of_two_kinds(root):
    """Days first at A, months first at B and C, no day above 12 there: left out, not guessed."""
    table = cohort()
    table["born"] = [f"{1 + k % 28:02d}.{1 + k % 12:02d}.{1940 + k % 50}" for k in range(len(table))]
    seen = [f"{1 + k % 28:02d}/{1 + k % 12:02d}/2021" for k in range(len(table))]
    other = [f"{1 + k % 12:02d}/{1 + k % 11:02d}/2021" for k in range(len(table))]
    table["seen"] = np.where(table["hospital"] == "A", seen, other)
    write(root, table)
    return ()


HABITS = {
    one.__name__: one
    for one in (
        numbers_and_words,
        one_level_of_cities,
        modalities,
        ground_truth_folder,
        table_beside_hospitals,
        same_folder_at_two_hospitals,
        ages_that_are_file_names,
        split_and_other_tables,
        the_table_twice,
        doubled_rows,
        totals_row,
        code_among_labels,
        code_among_numbers,
        words_for_unknown_among_labels,
        nine_among_labels,
        nine_among_grades,
        nine_among_codes,
        other_codes_at_one_site,
        unknown_split_word,
        blank_patients,
        units_in_cells,
        ages_that_are_none,
        patients_that_excel_has_cut,
        signs_in_few_cells,
        codes_that_begin_with_zero,
        names_that_become_one,
        path_out_of_the_folder,
        image_in_two_splits,
        dates_of_two_kinds,
    )
}


def masks_of_two_kinds(root):
    """Masks of 0 and 255 at one site, of 0 and 1 at the other."""
    for site, value in (("site-1", 255), ("site-2", 1)):
        drawn = Drawn()
        for k in range(8):
            drawn.save(root / site / f"{k}.png")
            mask = np.zeros((20, 20), np.uint8)
            mask[4:12, 5:15] = value
            Image.fromarray(mask).save(root / site / f"{k}_mask.png")
    return ("masks of site-1 have the pixel values 255, those of site-2 1",)


def masks_of_two_readers(root):
    masks_of_two_kinds(root)
    for k in range(8):
        (root / "site-1" / f"{k}_mask.png").rename(root / "site-1" / f"{k}_seg1.png")
        Image.open(root / "site-2" / f"{k}_mask.png").save(root / "site-1" / f"{k}_seg2.png")
    return ("site-1/0.png has two masks, site-1/0_seg1.png and site-1/0_seg2.png",)


HABITS["masks_of_two_readers"] = masks_of_two_readers
HABITS["masks_of_two_kinds"] = masks_of_two_kinds
