# SPDX-License-Identifier: Apache-2.0
"""Situations that `data init` meets, each as a small table or folder with what its reading must be.

A ``Situation`` makes its input below a folder. Its truth names sites, patients, outcome and predictors, or parts of the
refusal and what one of the remedies that the refusal prints must lead to.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from PIL import Image
from pydicom import dcmread

from dicom_sets import dataset, save, segmentation
from hospital_folders import Drawn
from volume_files import ball, write

N = 240


@dataclass
class Situation:
    """How the input is made, and what the reading must be.

    Attributes:
        make: writes below a folder, or returns the table.
        flags: of `init`.
        refused: parts of the refusal; with ``leads`` a remedy in it leads to that truth.
        truth: "sites" -> names or how many, "patient", "label", "time", "kind", "classes", "channels"; "has", "lacks"
            -> predictors; "kinds" -> predictor -> how it is read; "says", "unsaid" -> parts of suspects and notes.
        leads: the truth of one of the remedies.
        name: what `init` is given, below the folder.
    """

    make: Callable
    flags: tuple = ()
    refused: tuple = ()
    truth: dict = field(default_factory=dict)
    leads: dict = field(default_factory=dict)
    name: str = "data.csv"


ALL = {}


def add(name, make, flags="", refused=(), leads=None, at="data.csv", **truth):
    refused = (refused,) if isinstance(refused, str) else refused
    ALL[name] = Situation(make, tuple(flags.split()), refused, truth, leads or {}, at)


def base(n=N, drop=(), sites="ABC", visits=1, **columns):
    """Patients of a few hospitals with age, sex, crp and whether they died; ``columns``: an array, or of (rng, table).

    ``visits``: rows of each patient; the first of them are patients' own values, crp is drawn anew.
    """
    rng = np.random.default_rng(7)
    people = n // visits
    table = pd.DataFrame(
        {
            "hospital": [sites[k % len(sites)] for k in range(people)],
            "age": rng.integers(25, 90, people),
            "sex": rng.choice(["f", "m"], people),
        }
    )
    table["died"] = (rng.random(people) < 1 / (1 + np.exp(-0.04 * (table["age"] - 60)))).astype(int)
    table["who"] = rng.permutation(people) + 4711
    table = table.loc[table.index.repeat(visits)].reset_index(drop=True)
    table.insert(3, "crp", rng.gamma(2, 20, len(table)).round(1))
    for name, made in columns.items():
        table[name] = made(rng, table) if callable(made) else made
    kept = {"who", *drop} - {*columns}
    last = ["died"] if "died" in table and "died" not in kept else []
    return table[[name for name in table.columns if name not in (*kept, *last)] + last]


def table(*args, **columns):
    return lambda root: base(*args, **columns)


def ints(low, high):
    return lambda rng, t: rng.integers(low, high, len(t))


def pick(*values, p=None):
    return lambda rng, t: rng.choice(list(values), len(t), p=p)


def of(says):
    """A column of the others' ``says``."""
    return lambda rng, t: says(t)


LABEL = "--label died"

# fmt: off
# Roles: words inside names against cells.
add("time_in_hospital is no hospital", table(drop=["hospital"], time_in_hospital=ints(1, 5)), LABEL, sites=1,
    has=["time_in_hospital"])
add("previously_in_hospital is no hospital", table(drop=["hospital"], previously_in_hospital=pick("no", "yes")), LABEL,
    sites=1, kinds={"previously_in_hospital": "yes_no"})
add("visits to a clinic are no hospital", table(drop=["hospital"], clinic_visits_last_year=lambda r, t:
    r.poisson(2, len(t))), LABEL, sites=1, has=["clinic_visits_last_year"])
add("numbers of wards are codes, and months no amounts", table(ward_no=pick(11, 12, 31, 45),
    admission_month=pick(202301, 202302, 202311, 202401)), LABEL, kinds={"ward_no": "category"},
    lacks=["admission_month"])
add("days before hospital is no hospital", table(drop=["hospital"], days_before_hospital=ints(0, 9)), LABEL, sites=1,
    has=["days_before_hospital"])
add("number_inpatient is no patient", table(number_inpatient=lambda r, t: r.poisson(0.6, len(t))), LABEL, patient="",
    has=["number_inpatient"], sites=3)
add("outpatient visits are no patient", table(visits_outpatient=lambda r, t: r.poisson(2, len(t))), LABEL, patient="",
    has=["visits_outpatient"])
add("hospital said with yes and no", table(drop=["hospital"], hospital=pick("no", "yes")), LABEL, sites=1,
    kinds={"hospital": "yes_no"})
add("in_hospital as the outcome's place", table(drop=["hospital"], acquired_in_hospital=pick(0, 1)), LABEL, sites=1,
    has=["acquired_in_hospital"])
add("site of the tumour", table(drop=["hospital"], tumor_site=pick("lung", "breast", "colon")), LABEL, sites=1,
    kinds={"tumor_site": "category"})
add("site is a place of the body", table(drop=["hospital"], site=pick("left breast", "lung", "abdomen")), LABEL,
    sites=1, kinds={"site": "category"})
add("anatom_site_general", table(drop=["hospital"], anatom_site_general=pick("torso", "head/neck", "palms")), LABEL,
    sites=1, has=["anatom_site_general"])
add("hospital beds are an amount", table(drop=["hospital"], beds_of_hospital=ints(100, 900)), LABEL, sites=1,
    has=["beds_of_hospital"])
add("center_volume is an amount", table(center_volume=ints(100, 900)), LABEL, sites=3, has=["center_volume"])
add("hospital_number is the hospital", table(drop=["hospital"], hospital_number=pick(11, 12, 13)), LABEL, sites=3,
    lacks=["hospital_number"])
add("study_site is the hospital", table(drop=["hospital"], study_site=pick("S1", "S2")), LABEL, sites=2)
add("recruiting centre is the hospital", table(drop=["hospital"], recruiting_centre=pick(1, 2, 3)), LABEL, sites=3)
add("hospitals by their cells alone", table(drop=["hospital"], ort=pick("Charité", "Uniklinik Köln", "Klinikum Fulda")),
    LABEL, sites=3)
add("Zentrum", table(drop=["hospital"], Studienzentrum=pick("Bern", "Graz")), LABEL, sites=2)
add("name and number of one hospital", table(hospital_id=of(lambda t: t["hospital"].map(dict(A=7, B=8, C=9)))), LABEL,
    sites=3, lacks=["hospital_id"])
add("two columns of hospitals", table(center=pick("X", "Y")), LABEL, refused=("may be the site", "--site center"),
    leads=dict(sites=2))
add("time to hospital in minutes", table(drop=["hospital"], minutes_to_hospital=ints(5, 90)), LABEL, sites=1)
add("a hospital in every row another", table(drop=["hospital"], clinic=of(lambda t: [f"c{k}" for k in range(len(t))])),
    LABEL, sites=1)
add("hospital_expire_flag is an outcome", table(drop=["hospital", "died"], hospital_expire_flag=pick(0, 1)),
    "--label hospital_expire_flag", sites=1, label="hospital_expire_flag")

# Patients: by name and by what cells determine.
VISITS = dict(visits=4)
add("pat", table(**VISITS, pat=of(lambda t: t["who"])), LABEL, patient="pat", lacks=["pat"])
add("USUBJID", table(**VISITS, USUBJID=of(lambda t: "01-" + t["who"].astype(str))), LABEL, patient="USUBJID",
    lacks=["USUBJID"])
add("SUBJID", table(**VISITS, SUBJID=of(lambda t: t["who"])), LABEL, patient="SUBJID", lacks=["SUBJID"])
add("patient_nbr and encounter_id", table(**VISITS, encounter_id=of(lambda t: np.arange(len(t)) * 6 + 90001),
    patient_nbr=of(lambda t: t["who"])), LABEL, patient="patient_nbr", lacks=["encounter_id", "patient_nbr"])
add("hadm_id and subject_id", table(**VISITS, hadm_id=of(lambda t: t["who"] * 10 + np.arange(len(t)) % 4 // 2),
    subject_id=of(lambda t: t["who"])), LABEL, patient="subject_id", lacks=["hadm_id", "subject_id"])
add("stay_id and a patient without a known name", table(**VISITS, stay_id=of(lambda t: np.arange(len(t)) + 500),
    key=of(lambda t: t["who"])), LABEL, patient="key", lacks=["key", "stay_id"])
add("caseid and pat", table(**VISITS, caseid=of(lambda t: np.arange(len(t)) + 500), pat=of(lambda t: t["who"])), LABEL,
    patient="pat", lacks=["caseid"])
add("Fallnummer and PatNr", table(**VISITS, Fallnummer=of(lambda t: np.arange(len(t)) + 500),
    PatNr=of(lambda t: t["who"])), LABEL, patient="PatNr")
add("MRN", table(**VISITS, MRN=of(lambda t: t["who"].map("{:08d}".format))), LABEL, patient="MRN")
add("id that repeats", table(**VISITS, id=of(lambda t: t["who"])), LABEL, patient="id", lacks=["id"])
add("id that numbers rows", table(id=of(lambda t: np.arange(len(t)) + 1)), LABEL, patient="", lacks=["id"])
add("id that numbers each site's rows", table(id=of(lambda t: np.arange(len(t)) // 3)), LABEL, patient="", lacks=["id"])
add("a key that repeats and nothing else known", table(**VISITS, drop=["sex", "age"], id=of(lambda t: t["who"])), LABEL,
    refused=("id", "--patient id"), leads=dict(patient="id", lacks=["id"]))
add("doctors are no patients", table(physician_id=ints(1000, 1040)), LABEL, patient="", kinds={})
add("surgeon is no patient", table(surgeon=ints(100, 120)), LABEL, patient="")
add("record_id of several visits", table(**VISITS, record_id=of(lambda t: t["who"])), LABEL, patient="record_id")
add("stays alone", table(encounter_id=of(lambda t: np.arange(len(t)) + 77)), LABEL, patient="", lacks=["encounter_id"],
    says=["encounter_id numbers stays"])
add("rows of a stay", table(**VISITS, icustay_id=of(lambda t: t["who"])), LABEL, patient="icustay_id",
    lacks=["icustay_id"])
add("weight is no patient", table(weight=ints(50, 110)), LABEL, patient="", has=["weight"])
add("a random code of each person", table(**VISITS, pseudonym=of(lambda t: [f"X{w:x}Q" for w in t["who"]])), LABEL,
    patient="pseudonym")
add("patient_age is no patient", table(drop=["age"], patient_age=ints(20, 90)), LABEL, patient="", has=["patient_age"])
add("patient_class is no patient", table(patient_class=pick("inpatient", "emergency")), LABEL, patient="",
    kinds={"patient_class": "category"})
add("copies with other row numbers", lambda root: pd.concat([base(id=of(lambda t: np.arange(len(t))))] * 2)
    .assign(id=np.arange(2 * N)), LABEL, refused=("copies",))
add("copies under other patients", lambda root: pd.concat([base(pat=of(lambda t: t["who"]))] * 2)
    .assign(pat=np.arange(2 * N) + 9), LABEL, refused=("copies", "--patient none"))

# Codes.
add("DRG", table(drg=pick(470, 291, 392, 871, 690)), LABEL, kinds={"drg": "category"})
add("ICD-9 with V codes", table(diag_1=pick("250.83", "428", "414", "486", "V27", p=[0.3, 0.3, 0.2, 0.15, 0.05])),
    LABEL, kinds={"diag_1": "category"})
add("ICD-9 numbers alone", table(icd9_code=pick(250, 428, 414, 486)), LABEL, kinds={"icd9_code": "category"})
add("postal codes", table(zip_code=pick(10115, 80331, 50667)), LABEL, kinds={"zip_code": "category"})
add("PLZ with zeros", table(plz=pick("01067", "10115", "80331")), LABEL, kinds={"plz": "category"})
add("admission_type_id", table(admission_type_id=pick(1, 2, 3, 6)), LABEL, kinds={"admission_type_id": "category"})
add("a code that is kept as a number", table(drg=pick(470, 291, 392)), f"{LABEL} --keep drg", kinds={"drg": "number"})
add("codes with letters among numbers", table(procedure=pick("3961", "8872", "9904", "E12", p=[0.4, 0.3, 0.25, 0.05])),
    LABEL, kinds={"procedure": "category"})
add("an id of many values", table(provider_id=lambda r, t: r.integers(10000, 99999, len(t))), LABEL,
    lacks=["provider_id"])
add("glucose is a number", table(glucose=ints(60, 300)), LABEL, kinds={"glucose": "number"})
add("barcode and zipper are no codes", table(zipper=ints(1, 400), decode_time=ints(1, 400)), LABEL,
    kinds={"zipper": "number", "decode_time": "number"})

# Free text.
TEXTS = ["seen on the ward by the night team", "came with chest pain after a long walk", "no complaints at rest today",
         "transferred from another ward on request", "known to us from an earlier stay"]
add("free text of a few values", table(remark=pick(*TEXTS)), LABEL, lacks=["remark"])
add("free text called comment", table(Kommentar=pick("war gestern da", "kommt morgen wieder", "nicht nüchtern")), LABEL,
    lacks=["Kommentar"])
add("categories of several words", table(vessel=pick("left main coronary artery", "right coronary artery")), LABEL,
    kinds={"vessel": "category"})

# Outcomes.
add("no outcome by name: the last column is listed", table(drop=["died"], **{f"lab_{k}": ints(0, 99)
    for k in range(20)}, readmitted=pick("NO", ">30", "<30")), "",
    refused=("readmitted", "--label"), leads=dict(label="readmitted"))
add("outcome of a telling name in the middle", table(drop=["died"], expired=pick(0, 1), **{f"lab_{k}": ints(0, 99)
    for k in range(20)}), "", refused=("--label expired",), leads=dict(label="expired"))
add("label called died", table(), "", label="died", classes=["0", "1"])
add("y in the last column", table(drop=["died"], y=pick(0, 1)), "", label="y")
ONE_HOT = dict(MEL=[1, 0, 0, 0] * (N // 4), NV=[0, 1, 0, 0] * (N // 4), BCC=[0, 0, 1, 0] * (N // 4),
               AK=[0, 0, 0, 1] * (N // 4))
add("one-hot outcomes", table(drop=["died"], **ONE_HOT), "--label MEL",
    refused=("NV", "BCC", "together", "--leave-out"), leads=dict(lacks=["NV", "BCC", "AK"]))
add("one-hot outcomes left out", table(drop=["died"], **ONE_HOT), "--label MEL --leave-out NV,BCC --leave-out AK",
    lacks=["NV", "BCC", "AK"])
add("crea_day7", table(crea_day0=ints(50, 200), crea_day7=ints(50, 200)), LABEL, has=["crea_day0"], lacks=["crea_day7"],
    says=["crea_day7"])
add("crea_day7 kept", table(crea_day0=ints(50, 200), crea_day7=ints(50, 200)), f"{LABEL} --keep crea_day7",
    has=["crea_day7"])
add("month and follow-up values", table(hba1c_month6=ints(5, 30), ef_12months=ints(20, 70), nihss_week_2=ints(0, 30)),
    LABEL, lacks=["hba1c_month6", "ef_12months", "nihss_week_2"])
add("values at discharge", table(bp_at_discharge=ints(90, 180)), LABEL, lacks=["bp_at_discharge"])
add("first day is known", table(crea_day1=ints(50, 200), lactate_24h=ints(1, 9)), LABEL,
    has=["crea_day1", "lactate_24h"])
add("two columns that are the outcome together", table(left=of(lambda t: np.arange(len(t)) // 2 % 2),
    right=of(lambda t: (np.arange(len(t)) // 2 + t["died"]) % 2)), LABEL,
    refused=("left", "right", "together"), leads=dict(lacks=["left", "right"]))
add("a copy of the outcome", table(fate=of(lambda t: t["died"].map({0: "home", 1: "gone"}))), LABEL,
    refused=("fate alone tells the outcome", "--leave-out fate"), leads=dict(lacks=["fate"]))
add("columns that do not tell it", table(a=ints(0, 9), b=ints(0, 9), c=pick("x", "y")), LABEL, has=["a", "b", "c"])

# Survival.
DAYS = dict(days_to_event=lambda r, t: r.exponential(400, len(t)).round() + 1)


def follow(status, days="days_to_event", **more):
    return table(drop=["died"], **{days: DAYS["days_to_event"], "status": status}, **more)


add("status and days to event", follow(pick(0, 1)), "", refused=("--time days_to_event", "--event status"),
    leads=dict(kind="survival", time="days_to_event"))
add("vital_status beside days_to_death", table(drop=["died"], days_to_death=DAYS["days_to_event"],
    vital_status=pick("Alive", "Dead")), "--label vital_status",
    refused=("--time days_to_death", "--event vital_status", "--event-value Dead"),
    leads=dict(kind="survival", time="days_to_death", events="Dead"))
add("vital_status as a class all the same", table(drop=["died"], days_to_death=DAYS["days_to_event"],
    vital_status=pick("Alive", "Dead")), "--label vital_status --kind tabular", label="vital_status",
    lacks=["days_to_death"])
HORIZON = "--horizons 365"
add("status 1 and 2", follow(pick(1, 2)), f"--time days_to_event --event status {HORIZON}",
    refused=("--event-value 2", "--event-value 1"), leads=dict(kind="survival"))
add("status 1 and 2 with its value", follow(pick(1, 2)),
    f"--time days_to_event --event status --event-value 2 {HORIZON}",
    kind="survival", events="2")
add("Alive and Dead", follow(pick("Alive", "Dead")), f"--time days_to_event --event status {HORIZON}", kind="survival",
    events="Dead")
add("lebt and verstorben", follow(pick("lebt", "verstorben")), f"--time days_to_event --event status {HORIZON}",
    kind="survival", events="verstorben")
add("CDISC's CNSR", table(drop=["died"], AVAL=DAYS["days_to_event"], CNSR=pick(0, 1)),
    f"--time AVAL --event CNSR {HORIZON}", refused=("--event-value 0",), leads=dict(kind="survival", events="0"))
add("words for events", follow(pick("censored", "relapse")), f"--time days_to_event --event status {HORIZON}",
    kind="survival", events="relapse")
add("codes of several events", follow(pick(0, 1, 2)), f"--time days_to_event --event status --event-value 1 {HORIZON}",
    kind="survival", events="1")
add("an event's value that is nowhere", follow(pick(0, 1)),
    f"--time days_to_event --event status --event-value 7 {HORIZON}", refused=("--event-value", "7"))


def dated(r, t, most=900):
    return (pd.Timestamp("2015-03-01") + pd.to_timedelta(r.integers(0, most, len(t)), "D")).strftime("%Y-%m-%d")


def later(first, days=DAYS["days_to_event"]):
    return lambda r, t: (pd.to_datetime(t[first]) + pd.to_timedelta(days(r, t), "D")).dt.strftime("%Y-%m-%d")


def dead_only(first):
    return lambda r, t: later(first)(r, t).where(t["dead"] == 1, "")


add("two dates and a status", table(drop=["died"], diagnosed=dated, last_contact=later("diagnosed"),
    status=pick("alive", "dead")), f"--time last_contact --since diagnosed --event status {HORIZON}",
    kind="survival", events="dead", lacks=["diagnosed", "last_contact"])
add("death's date and the end of the study", table(drop=["died"], diagnosed=dated, dead=pick(0, 1),
    death_date=dead_only("diagnosed")),
    f"--time death_date --since diagnosed --until 2019-12-31 {HORIZON} --leave-out dead",
    kind="survival", lacks=["death_date", "dead"])
add("TCGA's two times", table(drop=["died"], vital_status=pick("Alive", "Dead"),
    days_to_death=lambda r, t: np.where(t["vital_status"] == "Dead", r.integers(1, 999, len(t)).astype(str), ""),
    days_to_last_follow_up=lambda r, t: np.where(t["vital_status"] == "Alive", r.integers(9, 999, len(t)).astype(str),
                                                 "")),
    f"--time days_to_death --event vital_status {HORIZON}",
    refused=("--time days_to_death,days_to_last_follow_up",),
    leads=dict(kind="survival", events="Dead", rows=N))

# Images with a table, in folders, and DICOM.


def photographs(n=48, each=3, folders=("HAM10000_images_part_1", "HAM10000_images_part_2")):
    """Each lesion has several photographs, in the two folders of a download; one table has the diagnoses."""

    def make(root):
        drawn, rows = Drawn(), []
        for k in range(n * each):
            lesion = k % n
            drawn.save(root / folders[k % len(folders)] / f"ISIC_{k:07d}.png", lesion % 2)
            rows.append({"lesion_id": f"HAM_{lesion:07d}", "image_id": f"ISIC_{k:07d}", "dx": ("nv", "mel")[lesion % 2],
                         "age": 30 + lesion % 40, "sex": "fm"[lesion // 2 % 2]})
        pd.DataFrame(rows).to_csv(root / "metadata.csv", index=False)

    return make


add("photographs of a lesion, two folders of a download", photographs(), "", at=".", patient="lesion_id", sites=1)
add("folders of a download and classes by table, sites asked", photographs(folders=("images_001", "images_002")), "",
    at=".", sites=1, patient="lesion_id")


def dicom(table_of=None, institutions=("Charité", "Mayo"), classes=("benign", "malignant")):
    def make(root):
        rng, rows = np.random.default_rng(0), []
        for k in range(36):
            where = root / "scans" if table_of else root / classes[k % 2]
            more = {"InstitutionName": institutions[k // 2 % len(institutions)]} if institutions else {}
            save(where / f"{k}.dcm", dataset(rng.integers(0, 900, (24, 24)).astype(np.int16), f"P{k:03d}", **more))
            rows.append({"file": f"{k}.dcm", "Target": k % 2, "clinic": "AB"[k // 2 % 2], "person": f"X{k // 2}"})
        if table_of:
            pd.DataFrame(rows).to_csv(root / "labels.csv", index=False)

    return make


add("DICOM with a table and --label", dicom(True), "--label Target --site clinic", at=".", sites=2, classes=["0", "1"])
add("DICOM with a table and --patient", dicom(True), "--label Target --patient person --site clinic", at=".",
    patient="person")
add("DICOM with a table and a header as site", dicom(True), "--label Target --site InstitutionName", at=".", sites=2)
add("DICOM with a table and no flag", dicom(True), "", at=".", sites=2, classes=["0", "1"])
add("institutions in headers alone", dicom(), "", at=".", refused=("InstitutionName", "--site none"),
    leads=dict(sites=2))
add("institutions in headers, asked for", dicom(), "--site InstitutionName", at=".", sites=2)
add("one institution in headers", dicom(institutions=("Charité",)), "", at=".", sites=1)


def by_accession(root):
    rng, rows = np.random.default_rng(0), []
    for k in range(40):
        pixels = rng.integers(0, 900, (24, 24)).astype(np.int16)
        save(root / "scans" / f"{k}.dcm", dataset(pixels, f"P{k // 2:03d}", study=k, AccessionNumber=f"A{k:05d}"))
        rows.append({"accession": f"A{k:05d}", "Pneumonia": k // 2 % 2})
    pd.DataFrame(rows).to_csv(root / "labels.csv", index=False)


def by_person(root):
    by_accession(root)
    own = pd.read_csv(root / "labels.csv")[::2].drop(columns="accession")
    own.assign(subject=[f"P{k:03d}" for k in range(20)]).to_csv(root / "labels.csv", index=False)


def eyes(root):
    for k in range(40):
        for side in ("left", "right"):
            path = root / ("glaucoma", "healthy")[k % 2] / f"IMG{k:04d}_{side}.png"
            path.parent.mkdir(exist_ok=True)
            Drawn().save(path)


add("a table of accession numbers", by_accession, "--label Pneumonia", at=".", rows=40, classes=["0", "1"],
    patient="the DICOM header PatientID")
add("a table of DICOM's patients", by_person, "--label Pneumonia", at=".", rows=40, patient="subject")
add("both eyes of a patient", eyes, "--site none", at=".", rows=80, patient="the beginning of the files' names")


def nnunet(root):
    drawn = Drawn()
    for k in range(12):
        drawn.save(root / "imagesTr" / f"case_{k:03d}_0000.png")
        mask = np.zeros((20, 20), np.uint8)
        mask[2:8, 2:8], mask[10:16, 4:12] = 1, 2
        (root / "labelsTr").mkdir(exist_ok=True)
        Image.fromarray(mask).save(root / "labelsTr" / f"case_{k:03d}.png")
    labels = {"background": 0, "liver": 1, "tumour": 2}
    (root / "dataset.json").write_text(json.dumps({"labels": labels, "channel_names": {"0": "CT"}, "numTraining": 12}))


add("nnU-Net's structures", nnunet, "", at=".", classes=["liver", "tumour"])
add("a tiny hospital", lambda root: pd.concat([base(), base(n=1, sites="D").assign(died=1)]), LABEL, sites=3,
    rows=N)

# Units and second headers.
add("two units inside one site", table(crea=lambda r, t: np.where(r.random(len(t)) < 0.4, r.uniform(0.5, 2, len(t)),
    r.uniform(50, 180, len(t))).round(2)), LABEL, says=["crea: about", "two units"])
add("degrees of two kinds", table(temp=lambda r, t: np.where(r.random(len(t)) < 0.5, r.uniform(36, 40, len(t)),
    r.uniform(97, 104, len(t))).round(1)), LABEL, says=["temp: about", "two units"])


def with_second_line(line):
    def make(root):
        body = base()
        return pd.concat([pd.DataFrame([line], columns=body.columns), body.astype(object)])

    return make


add("a row of units", with_second_line(["", "years", "", "mg/l", "0/1"]), LABEL, rows=N, sites=3,
    kinds={"age": "number"},
    classes=["0", "1"], says=["the second line"])
add("two header rows", with_second_line(["name", "of patient", "f/m", "mg per l", "in hospital"]), LABEL, rows=N,
    sites=3, classes=["0", "1"], says=["the second line"])

def of_sites(sites="AB", **changes):
    """A file of each site; ``changes``: site -> what becomes of its table."""

    def make(root):
        whole = base(sites=sites, smoker=pick("yes", "no"))
        for site, own in whole.groupby("hospital"):
            made = changes.get(site, lambda one: one)(own.drop(columns="hospital"))
            made.to_csv(root / f"{site}_hospital.csv", index=False)

    return make


def with_units(one):
    line = {"age": "years", "sex": "", "crp": "mg/l", "smoker": "", "died": ""}
    return pd.concat([pd.DataFrame([line]), one.astype(object)])


def written(encoding, names, sep=";", decimal=",", visits=1, **more):
    """A table with the column names and cells of another language; ``names``: column -> name."""

    def make(root):
        own = base(visits=visits, pat=of(lambda t: t["who"]), **more).rename(columns=names)
        own.to_csv(root / "data.csv", sep=sep, decimal=decimal, index=False, encoding=encoding)

    return make


add("a row of units in each site's file", of_sites(A=with_units, B=with_units), at=".", rows=N, sites=2,
    says=["A_hospital.csv: the second line", "B_hospital.csv: the second line"])
add("an empty hospital", of_sites("ABC", C=lambda one: one[:0]), at=".", sites=2, says=["C_hospital.csv holds no rows"])
add("a hospital without outcomes", lambda root: base().astype({"died": object})
    .assign(died=lambda t: t["died"].where(t["hospital"] != "C", "")), LABEL, sites=["A", "B"],
    says=["C: no row has died, so that the site is left out"])
add("names that differ by case", of_sites(B=lambda one: one.rename(columns={"age": "Age", "died": "DIED "})), at=".",
    sites=2, rows=N, has=["age"], says=["B_hospital.csv: Age, DIED are read as age, died"])
add("names in another language at one site", of_sites(B=lambda one: one.rename(columns={"age": "Alter", "sex":
    "Geschlecht"})), at=".", refused=("lacks age, sex, has Alter, Geschlecht", "--rename Alter=age,Geschlecht=sex"),
    leads=dict(sites=2, rows=N, has=["age", "sex"]))
add("other columns at one site", of_sites(B=lambda one: one.rename(columns={"age": "ward"}).assign(ward="intensive")),
    at=".", refused=("lacks age, has ward", "--mapping FILE"))
add("a column more at one site", of_sites(B=lambda one: one.assign(extra=1)), at=".",
    refused=("B_hospital.csv", "--leave-out extra"), leads=dict(sites=2, rows=N, lacks=["extra"]))
add("outcomes in other words", of_sites(A=lambda one: one.replace({"died": {0: "alive", 1: "dead"}}),
    B=lambda one: one.replace({"died": {0: "survived", 1: "died"}})), at=".", sites=2, classes=["alive", "dead"],
    says=["B_hospital: survived, died are read as alive, dead"])
LIVED, ALIVE = {0: 1, 1: 0}, {0: "alive", 1: "dead"}
SURVIVED = of_sites("ABC", **{site: lambda one, words=words: one.replace({"died": words}).rename(
    columns={"died": "survived"}) for site, words in (("A", LIVED), ("B", ALIVE), ("C", LIVED))})
add("1 at some sites where others say alive or dead", SURVIVED, "--label survived", at=".",
    refused=("survived: holds 0, 1 at some sites and alive, dead at others", "--event-value 0", "--event-value 1"),
    leads=dict(classes=["1", "0"], says=["B_hospital: alive, dead are read as 1, 0"]))
add("1 that is said to be dead", SURVIVED, "--label survived --event-value 1", at=".", classes=["0", "1"],
    says=["B_hospital: alive, dead are read as 0, 1"])
add("outcomes in words that do not say which", of_sites(B=lambda one: one.replace({"died": {0: 2, 1: 1}})), at=".",
    refused=("labels differ between sites", "--classes 0,1,2"))
add("decimal commas at one site", lambda root: base().astype({"crp": object}).assign(crp=lambda t:
    t["crp"].astype(str).where(t["hospital"] != "B", t["crp"].astype(str).str.replace(".", ","))), LABEL,
    kinds={"crp": "number"}, says=["is read as"])
add("thousands with spaces", table(plt=lambda r, t: [f"{v:,}".replace(",", "\u202f") for v in
    r.integers(9e4, 4e5, len(t))]), LABEL, kinds={"plt": "number"}, says=["plt: "])
add("one unit in all cells", table(drop=["age"], Alter=lambda r, t: [f"{v} Jahre" for v in r.integers(20, 90, len(t))]),
    LABEL, kinds={"Alter": "number"})
add("a row for each measurement", lambda root: base(who=of(lambda t: [f"P{k:03d}" for k in t.index])).melt(
    ["who", "hospital", "died"], var_name="variable"), LABEL,
    refused=("a row for each measurement, as variable and value say", "fairflare init", "--mapping data.mapping.yaml"))
add("a wide range is no second unit", table(crp=lambda r, t: r.permutation(np.r_[np.linspace(25, 38,
    40), np.linspace(45, 120, len(t) - 40)]).round(2)), f"{LABEL} --site none", unsaid=["two units"])
add("two units in the cells", table(crea=lambda r, t: [f"{v} µmol/l" if k % 2 else f"{v / 88.4:.2f} mg/dl"
    for k, v in enumerate(r.integers(50, 120, len(t)))]), LABEL, refused=("crea", "--leave-out crea"),
    leads=dict(lacks=["crea"]))
add("an amount in percent", table(drop=["died"], remission=lambda r, t: [f"{v}%" for v in r.integers(0, 99, len(t))]),
    "--label remission", refused=("--kind regression",), leads=dict(kind="regression"))


def days(form, first="2020-01-01", most=900):
    """Dates as ``strftime`` writes them; "" as Excel counts."""

    def made(rng, t):
        found = pd.Timestamp(first) + pd.to_timedelta(rng.integers(0, most, len(t)), "D")
        return found.strftime(form) if form else (found - pd.Timestamp("1899-12-30")).days

    return made


DAYS_SINCE = f"{LABEL} --since admission_date"
for what, form in {"Excel's numbers": "", "numbers such as 20200131": "%Y%m%d", "days before months": "%d/%m/%Y",
                   "names of months": "%d-%b-%Y", "SAS": "%d%b%Y"}.items():  # fmt: skip
    both = table(admission_date=days(form), op_date=days(form, "2022-07-01"))
    add(f"dates as {what}", both, DAYS_SINCE, kinds={"op_date": "days"}, lacks=["admission_date"])
    add(f"dates as {what} are no numbers", both, LABEL, lacks=["admission_date", "op_date"], says=["dates (--since"])
add("dates that each site writes otherwise", table(admission_date=days("%Y-%m-%d"), op_date=lambda r, t: np.where(
    t["hospital"] == "A", days("%d.%m.%Y", "2022-07-01")(r, t), days("%m/%d/%Y", "2022-07-01")(r, t))), DAYS_SINCE,
    kinds={"op_date": "days"})
add("dates of two-digit years", table(admission_date=days("%d.%m.%y"), op_date=days("%d.%m.%y")), DAYS_SINCE,
    lacks=["op_date"], says=["nothing says the century", "counts nothing"])
add("two outcomes", table(drop=["died"], mortality_30d=pick(0, 1), readmission_30d=pick(0, 1)),
    refused=("--label mortality_30d", "--label readmission_30d"), leads=dict(label="mortality_30d",
    lacks=["readmission_30d"]))
add("German, UTF-16", written("utf-16", dict(hospital="Klinik", age="Alter", sex="Geschlecht", crp="CRP (mg/l)",
    died="Verstorben", pat="PatNr")), sites=3, label="Verstorben", has=["Alter", "CRP (mg/l)"], lacks=["PatNr"])
add("French, Latin-1", written("latin-1", dict(hospital="Hôpital", age="Âge", died="Décès", pat="N° patient",
    los="Durée de séjour"), visits=2, los=ints(1, 30)), sites=3, label="Décès", patient="N° patient", has=["Âge"],
    lacks=["Durée de séjour"], says=["Durée de séjour: its name"])
add("Spanish", written("utf-8", dict(hospital="Centro", age="Edad", died="Fallecido", pat="NHC",
    los="estancia_hospitalaria"), visits=2, los=ints(1, 30)), sites=3, label="Fallecido", patient="NHC",
    lacks=["estancia_hospitalaria", "Centro"])
add("ids that hospitals share", table(visits=4, patient_id=of(lambda t: t.groupby("hospital")["who"].transform(
    lambda own: pd.factorize(own)[0] + 1))), LABEL, patient="patient_id", sites=3, lacks=["patient_id"],
    says=["20 names of patients stand at several sites", "240 rows of 60 patients"])

# Near copies across patients.
LABS = {name: lambda r, t: r.normal(50, 9, len(t)).round(2) for name in ("na", "k", "ca", "hb", "alb")}


def nearly_again(share, **more):
    """The first rows once more, with another potassium and sex."""

    def make(root):
        rows = base(**LABS, **more)
        again = rows.head(int(share * len(rows))).copy()
        again["k"] = again["k"] + 1
        again["sex"] = again["sex"].iloc[::-1].to_numpy()
        return pd.concat([rows, again])

    return make


add("a few rows again but for two cells", nearly_again(0.04), LABEL, says=["9 rows are copies of others but for 2"])
add("many rows again but for two cells", nearly_again(0.3), LABEL, refused=("72 of 312 rows are copies", "--patient"),
    leads=dict(patient=""))
add("many rows again, of known patients", nearly_again(0.3, pat=of(lambda t: t["who"])), LABEL, patient="pat")
add("rows of few numbers agree by chance", table(n=3000, score=pick(1, 2, 3), grade=pick(0, 1)), LABEL, rows=3000,
    unsaid=["are copies"])


def photographed(again):
    """Two classes of blurred noise; with ``again`` the first of a class are there as JPEG of another size, too."""

    def make(root):
        rng = np.random.default_rng(3)
        for k in range(40):
            folder = root / ("benign", "malignant")[k % 2]
            folder.mkdir(exist_ok=True)
            picture = Image.fromarray(rng.integers(0, 255, (12, 12), dtype=np.uint8)).resize((96, 96))
            picture.save(folder / f"{chr(97 + k % 26)}{k // 26}.png")
            if again and k < 6:
                picture.resize((64, 64)).save(folder / f"z{chr(97 + k)}.jpg", quality=85)

    return make


add("pictures again, encoded anew", photographed(True), "--site none", at=".", sites=1,
    says=["6 images are files or pictures of another patient, too"])
add("pictures that are all others", photographed(False), "--site none", at=".", sites=1, unsaid=["of another patient"])


# Formats of masks.


def segmented(kind="BINARY"):
    def make(root):
        rng = np.random.default_rng(0)
        for p in range(12):
            images = [dataset(rng.integers(0, 900, (24, 24)).astype(np.int16), f"P{p}", instance=k) for k in range(3)]
            masks = np.zeros((3, 24, 24), np.uint8)
            masks[:2, 2:8, 2:8], masks[1, 12:18, 5:9] = 1, 2
            home = root / f"{'AB'[p % 2]}_hospital" / f"P{p}"
            for k, one in enumerate(images):
                save(home / f"{k}.dcm", one)
            found = segmentation(images, masks, ["liver", "tumour"])
            found.SegmentationType = kind
            save(home / "SEG.dcm", found)

    return make


add("DICOM segmentations", segmented(), at=".", kind="segmentation", classes=["liver", "tumour"], sites=2, rows=24,
    says=["12 images have no mask"])
add("DICOM segmentations of shares", segmented("FRACTIONAL"), at=".", refused=("binary", "FRACTIONAL", "SEG.dcm"))


def with_masks(ending):
    def make(root):
        for k in range(6):
            Drawn().save(root / f"i{k}.png")
            (root / f"i{k}_mask.{ending}").write_bytes(b"MHD")

    return make


def slicer(root):
    """Volumes with the segmentations of 3D Slicer beside them, which name their structures."""
    rng = np.random.default_rng(0)
    for k in range(24):
        image, mask, affine = ball(rng, (16, 16, 8))
        write(root / f"p{k:02d}.nii.gz", image, affine)
        names = {"Segment0_LabelValue": "1", "Segment0_Name": "liver, left"}
        write(root / f"p{k:02d}.seg.nrrd", mask, affine, **names)


add("segmentations of 3D Slicer", slicer, "--slices 1", at=".", kind="segmentation", classes=["liver  left"], sites=1,
    rows=192)
add("segmentations of 3D Slicer with volumes", slicer, "--kind volume-segmentation", at=".", sites=1, rows=24,
    kind="volume-segmentation", classes=["liver  left"])
add("masks in MetaImage", with_masks("mha"), at=".", refused=("MetaImage", "s.ReadImage('i0_mask.mha')"))
add("masks in HDF5", with_masks("h5"), at=".", refused=("HDF5",))


def boxes(form):
    """Images with the boxes of COCO or YOLO, and nothing else that says labels."""

    def make(root):
        for k in range(6):
            Drawn().save(root / f"i{k}.png")
            if form == "YOLO":
                (root / f"i{k}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
        if form == "COCO":
            (root / "boxes.json").write_text(json.dumps({"images": [], "annotations": [], "categories": []}))

    return make


def pages(root):
    """Stacks of TIFF with masks of as many pages."""
    rng = np.random.default_rng(0)
    for k in range(20):
        image = [Image.fromarray(rng.integers(0, 255, (24, 24)).astype(np.uint8)) for _ in range(3)]
        mask = [Image.fromarray((np.asarray(one) > 128).astype(np.uint8)) for one in image]
        for name, own in ((f"p{k:02d}.tif", image), (f"p{k:02d}_mask.tif", mask)):
            own[0].save(root / name, save_all=True, append_images=own[1:])


add("boxes of COCO", boxes("COCO"), at=".", refused=("boxes.json: COCO", "x_mask.png"))
add("boxes of YOLO", boxes("YOLO"), at=".", refused=("i0.txt: YOLO", "x_mask.png"))
add("stacks of TIFF", pages, "--slices 1", at=".", kind="segmentation", rows=60, sites=1)


def contours(root):
    dicom()(root)
    save(root / "benign" / "rt.dcm", dataset(np.zeros((8, 8), np.uint8), "P1", modality="OT"))
    found = dcmread(root / "benign" / "rt.dcm")
    found.Modality = "RTSTRUCT"
    del found.Rows, found.Columns, found.PixelData
    found.save_as(root / "benign" / "rt.dcm")


def contours_alone(root):
    contours(root)
    for path in sorted(root.glob("*/*.dcm")):
        path.rename(root / f"{path.parent.name}_{path.name}")


add("contours beside images", contours_alone, at=".", refused=("(RTSTRUCT)", "benign_rt.dcm", "NRRD masks"))
add("contours among images", contours, "--site none", at=".", says=["RTSTRUCT"], sites=1)

add("lists of codes in a cell", table(icd=pick("I10;E11", "I10", "E11;J44", "J44"), atc=pick("C07, B01", "C07", "B01")),
    LABEL, kinds={"icd": "category", "atc": "category"},
    says=["icd: cells hold several codes (;): 3", "atc: cells hold several codes (,): 2"])
add("lists of codes kept as they are", table(icd=pick("I10;E11", "I10", "E11;J44", "J44")), f"{LABEL} --keep icd",
    kinds={"icd": "category"}, unsaid=["several codes"])
add("lists of codes of which one tells the outcome", table(icd=of(lambda t: np.where(t["died"], "R99;I10", "I10;E11"))),
    LABEL, refused=("icd alone tells the outcome", "--leave-out icd"), leads=dict(lacks=["icd"]))
add("lists of codes that tell the outcome together", table(icd=of(lambda t: [f"I10;{'CD'[d]}{k % 3}" for k, d in
    enumerate(t["died"])])), LABEL, refused=("icd", "the outcome", "--leave-out icd"), leads=dict(lacks=["icd"]))


def contrasts(root):
    entries = [{"image": [f"t1_{k}.png", f"t2_{k}.png"], "label": k % 2} for k in range(8)]
    for path in (path for one in entries for path in one["image"]):
        Drawn().save(root / path)
    (root / "dataset.json").write_text(json.dumps({"training": entries}))


def named_by_contrast(names, folder="{label}", ending="png"):
    """Images of 24 patients, each with a file for every one of ``names``; ``folder``: of patient and label."""

    def make(root):
        rng = np.random.default_rng(0)
        for k in range(24):
            home = root / folder.format(patient=f"p{k:02d}", label=("benign", "malignant")[k % 2])
            home.mkdir(parents=True, exist_ok=True)
            image, mask, affine = ball(rng, (16, 16, 6))
            for name in names:
                if ending == "png":
                    Drawn().save(home / f"p{k:02d}_{name}.png")
                else:
                    write(home / f"p{k:02d}_{name}.nii.gz", image + rng.normal(size=image.shape), affine)
            if ending != "png":
                masks = root / "labelsTr" if "imagesTr" in folder else home
                write(masks / f"p{k:02d}{'' if 'imagesTr' in folder else '_seg'}.nii.gz", mask, affine)

    return make


def repeated_names(name, sites=3, people=4):
    """Six slices of every patient of small hospitals; ``name``: of the site's, the patient's and the slice's number."""

    def make(root):
        for at, p, k in np.ndindex(sites, people, 6):
            Drawn().save(root / f"hospital{at}" / ("benign", "malignant")[p % 2] / f"{name.format(at, p, k)}.png")

    return make


def segments(root, masks=False):
    """Images of whole livers and of their segments; ``masks``: three of them have one beside them or elsewhere."""
    for k in range(48):
        home, name = root / f"{'AB'[k % 2]}_hospital" / ("benign", "malignant")[k // 2 % 2], f"P1{k // 2:02d}"
        Drawn().save(home / f"{name}_{'whole' if k % 3 else 'seg4'}.png")
        for place in [home / f"{name}_whole_mask.png"] * (masks and k in (1, 5)):
            Drawn().save(place)
    if masks:
        Drawn().save(root / "A_hospital" / "benign" / "masks" / "P999.png")


def small_lesions(root):
    """Volumes of 100 slices with two structures in one slice of one mask."""
    for k in range(8):
        image, mask = np.random.default_rng(k).normal(9, 1, (16, 16, 100)), np.zeros((16, 16, 100), np.uint8)
        mask[2:9, 2:9, 31], mask[3:5, 3:5, 31] = k == 3, 2 * (k == 3)
        for name, voxels in ((f"c{k}x", image), (f"c{k}x_mask", mask)):
            write(root / f"{name}.nii.gz", voxels, np.eye(4))


def on_a_fourth_axis(n):
    def make(root):
        rng = np.random.default_rng(0)
        for k in range(24):
            image, mask, affine = ball(rng, (16, 16, 6))
            write(root / f"p{k:02d}.nii.gz", np.stack([image + c for c in range(n)], axis=-1), affine)
            write(root / f"p{k:02d}_seg.nii.gz", mask, affine)

    return make


BY_NAMES = "the beginning of the files' names"
add("names of few patients at each hospital", repeated_names("P{0}{1}_slice{2}"), at=".", patient=BY_NAMES, rows=72)
add("the same few names at each hospital", repeated_names("pat_P{1:02d}_slice{2}"), at=".", patient=BY_NAMES, rows=72)
add("names that repeat and may be scanners", repeated_names("{1}T{0}_{2}", people=2), at=".",
    refused=("may be the patient", "--patient name", "--patient none"), leads=dict(patient="", rows=36))
add("images that are called like masks", segments, at=".", kind="classification", rows=48, unsaid=["left out"])
add("images with masks of which the folders are the classes", lambda root: segments(root, masks=True),
    "--kind classification", at=".", rows=48, says=["3 images are called like masks and are left out"])
add("small lesions in few slices", small_lesions, "--slices 20 --classes organ,tumour", at=".", kind="segmentation",
    classes=["organ", "tumour"], sites=1)
add("small lesions in few slices of whole volumes", small_lesions, "--kind volume-segmentation", at=".", sites=1,
    kind="volume-segmentation", classes=["structure 1", "structure 2"], rows=8)
add("contrasts on the fourth axis", on_a_fourth_axis(2), at=".", refused=("p00.nii.gz: several volumes in one file",),
    leads=dict(kind="volume-segmentation", rows=24, channels="2"))
add("a time series on the fourth axis", on_a_fourth_axis(20), at=".", refused=("20 volumes in one file", "their mean"))
add("contrasts as channels in a list", contrasts, at=".", rows=8, kind="classification")
add("contrasts by names in folders of classes", named_by_contrast(["T1", "T2", "FLAIR"]), at=".", rows=24,
    classes=["benign", "malignant"], says=["24 images have 3 contrasts each", "FLAIR.png, "])
add("contrasts of volumes by their slices, as BraTS names them", named_by_contrast(["t1", "t1ce", "t2", "flair"],
    "{patient}", "nii.gz"), "--slices 2", at=".", rows=72, kind="segmentation", says=["have 4 contrasts each"])
add("channels of nnU-Net by their slices", named_by_contrast(["0000", "0001"], "imagesTr", "nii.gz"), "--slices 3",
    at=".", rows=48, kind="segmentation", says=["have 2 contrasts each"])
add("contrasts of whole volumes", named_by_contrast(["t1", "t2"], "{patient}", "nii.gz"), "--kind volume-segmentation",
    at=".", kind="volume-segmentation", rows=24, sites=1, says=["24 images have 2 contrasts each"])
add("numbers in names are no contrasts", named_by_contrast(["0001", "0002"]), at=".", rows=48, unsaid=["contrasts"])
