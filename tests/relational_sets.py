# SPDX-License-Identifier: Apache-2.0
"""Tables with several rows a patient, their mappings, and the patient tables that plain pandas makes of them.

The patient tables are made row by row, without the package: they say what a mapping must give.
"""

import numpy as np
import pandas as pd

SITES = ("Bern", "Graz", "Wien")
CODES = {"8480-6": ("systolic", "mmHg", 130, 18), "2160-0": ("creatinine", "mg/dL", 1.1, 0.4)}
SYNTHEA = """\
patient: PATIENT
site: site
index:
  table: encounters.csv
  date: START
  where: {ENCOUNTERCLASS: inpatient}
  columns: {reason: REASON}
columns:
  - {name: site, table: organizations.csv, key: {ORGANIZATION: Id}, column: NAME}
  - {name: sex, table: patients.csv, key: Id, column: GENDER}
  - {name: age, table: patients.csv, key: Id, date: BIRTHDATE, take: since, unit: years}
  - name: systolic
    table: observations.csv
    date: DATE
    where: {CODE: 8480-6}
    column: VALUE
    window: [-365, 0]
    take: [first, last, min, max, mean, count, since]
  - {name: creatinine, table: observations.csv, date: DATE, where: {CODE: 2160-0}, column: VALUE, take: last}
  - {name: diabetes, table: conditions.csv, date: START, where: {CODE: [44054006, 15777000]}, take: any}
  - {name: stays, table: encounters.csv, date: START, window: [-730, -0.001], take: count}
outcome:
  {name: died, table: patients.csv, key: Id, date: DEATHDATE, window: [0, 365], take: any}
"""


def synthea(root, n=5000, seed=0):
    """Five tables of Synthea's form below ``root``; returns its mapping's text."""
    rng = np.random.default_rng(seed)
    ids = [f"p-{k:05d}" for k in rng.permutation(n)]
    born = pd.Timestamp("1930-01-01") + pd.to_timedelta(rng.integers(0, 22000, n), unit="D")
    frail = rng.normal(size=n)
    organizations = pd.DataFrame({"Id": [f"o{k}" for k in range(3)], "NAME": SITES, "ZIP": ["3010", "8010", "1010"]})
    home = rng.integers(0, 3, n)
    rows = {"encounters": [], "observations": [], "conditions": []}
    dead = []
    for k in range(n):
        days = np.sort(rng.integers(0, 2000, rng.integers(1, 6)))
        first = None
        for day in days:
            start = pd.Timestamp("2015-01-01T00:00:00") + pd.Timedelta(
                days=int(day), minutes=int(rng.integers(0, 1440))
            )
            inpatient = rng.random() < 0.5
            first = start if inpatient and first is None else first
            kind, why = "inpatient" if inpatient else "ambulatory", str(rng.choice(["heart", "lung", "other"]))
            rows["encounters"].append((f"e{len(rows['encounters'])}", f"{start:%Y-%m-%dT%H:%M:%SZ}", ids[k], kind, why,
                                       f"o{home[k]}"))  # fmt: skip
        for code, (name, unit, middle, spread) in CODES.items():
            for _ in range(rng.integers(0, 12)):
                when = pd.Timestamp("2014-06-01") + pd.Timedelta(minutes=int(rng.integers(0, 2400 * 1440)))
                value = middle + spread * (0.5 * frail[k] + rng.normal())
                text = "" if rng.random() < 0.03 else f"{value:.1f}"
                rows["observations"].append((f"{when:%Y-%m-%dT%H:%M:%SZ}", ids[k], code, name, text, unit))
        for code in (44054006, 15777000, 59621000):
            if rng.random() < 0.2:
                when = pd.Timestamp("2012-01-01") + pd.Timedelta(days=int(rng.integers(0, 3000)))
                rows["conditions"].append((f"{when:%Y-%m-%d}", ids[k], code))
        risk = 1 / (1 + np.exp(-(frail[k] - 0.5)))
        dies = rng.random() < risk and first is not None
        dead.append(f"{first + pd.Timedelta(days=int(rng.integers(1, 700))):%Y-%m-%d}" if dies else "")
    tables = {
        "organizations": organizations,
        "patients": pd.DataFrame(
            {"Id": ids, "BIRTHDATE": born.strftime("%Y-%m-%d"), "DEATHDATE": dead, "GENDER": rng.choice(["F", "M"], n)}
        ),  # fmt: skip
        "encounters": pd.DataFrame(
            rows["encounters"], columns=["Id", "START", "PATIENT", "ENCOUNTERCLASS", "REASON", "ORGANIZATION"]
        ),  # fmt: skip
        "observations": pd.DataFrame(
            rows["observations"], columns=["DATE", "PATIENT", "CODE", "DESCRIPTION", "VALUE", "UNITS"]
        ),  # fmt: skip
        "conditions": pd.DataFrame(rows["conditions"], columns=["START", "PATIENT", "CODE"]),
    }
    for name, table in tables.items():  # rows in no order, as a database gives them
        table.sample(frac=1, random_state=seed).to_csv(root / f"{name}.csv", index=False)
    return SYNTHEA


def of_synthea(root):
    """The patient table by hand: patient -> {column: value}, None where nothing is known."""
    read = {name: pd.read_csv(root / f"{name}.csv", dtype={"CODE": str}) for name in
            ("organizations", "patients", "encounters", "observations", "conditions")}  # fmt: skip

    def moment(text):
        return pd.Timestamp(text).tz_localize(None) if pd.Timestamp(text).tzinfo else pd.Timestamp(text)

    def of_each(name, key="PATIENT"):
        found = {}
        for row in read[name].to_dict("records"):
            found.setdefault(row[key], []).append(row)
        return found

    named = dict(zip(read["organizations"].Id, read["organizations"].NAME))
    encounters, seen, ill = of_each("encounters"), of_each("observations"), of_each("conditions")
    people = {row["Id"]: row for row in read["patients"].to_dict("records")}
    table = {}
    for who, own in encounters.items():
        stays = sorted((moment(row["START"]), k) for k, row in enumerate(own) if row["ENCOUNTERCLASS"] == "inpatient")
        if not stays:
            continue
        start, k = stays[0]
        day = start.normalize()
        line = {"reason": own[k]["REASON"], "site": named[own[k]["ORGANIZATION"]], "sex": people[who]["GENDER"]}
        line["age"] = (day - moment(people[who]["BIRTHDATE"])).days / 365.25
        values = {}
        for code in CODES:
            dated = [(moment(row["DATE"]), k, row["VALUE"]) for k, row in enumerate(seen.get(who, ()))
                     if row["CODE"] == code and row["VALUE"] == row["VALUE"]]  # fmt: skip
            values[code] = sorted(one for one in dated if one[0] <= start)
        year = [one for one in values["8480-6"] if start - one[0] <= pd.Timedelta(days=365)]
        numbers = [value for _, _, value in year]
        for take, of in {
            "first": lambda x: x[0],
            "last": lambda x: x[-1],
            "min": min,
            "max": max,
            "mean": np.mean,
        }.items():
            line[f"systolic_{take}"] = of(numbers) if numbers else None
        line["systolic_count"] = len(numbers)
        line["systolic_since"] = (start - year[-1][0]).total_seconds() / 86400 if year else None
        line["creatinine"] = values["2160-0"][-1][2] if values["2160-0"] else None
        before = [row for row in ill.get(who, ()) if moment(row["START"]) < day]
        line["diabetes"] = int(any(row["CODE"] in ("44054006", "15777000") for row in before))
        ago = [(start - moment(row["START"])).total_seconds() / 86400 for row in own]
        line["stays"] = sum(0.001 <= gap <= 730 for gap in ago)
        died = people[who]["DEATHDATE"]
        over = moment(died) + pd.Timedelta(seconds=86399) if died == died else None
        line["died"] = int(over is not None and 0 <= (over - start).total_seconds() / 86400 <= 365)
        table[who] = line
    return table


def redcap(path, n=180, seed=0):
    """REDCap's longitudinal export: a baseline with repeated labs, and a follow-up with the outcome."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(1, n + 1):
        own = {"record_id": k, "redcap_data_access_group": ("bern", "graz", "wien")[k % 3]}
        day = pd.Timestamp("2020-01-01") + pd.Timedelta(days=int(rng.integers(0, 500)))
        age = int(rng.integers(30, 90))
        base = {"visit_date": f"{day:%Y-%m-%d}", "age": age, "sex": int(rng.integers(1, 3)), "demographics_complete": 2}
        crp = "" if rng.random() < 0.1 else round(rng.gamma(2, 20), 1)
        rows.append({**own, "redcap_event_name": "baseline_arm_1", **base, "crp": crp})
        for number in range(int(rng.integers(0, 5))):
            when = day + pd.Timedelta(days=int(rng.integers(-60, 60)))
            lab = {"redcap_repeat_instrument": "labs", "redcap_repeat_instance": number + 1}
            cells = {"lab_date": f"{when:%Y-%m-%d}", "hb": round(rng.normal(13, 2), 1)}
            rows.append({**own, "redcap_event_name": "baseline_arm_1", **lab, **cells})
        happened = int(rng.random() < 1 / (1 + np.exp(-(age - 60) / 12)))
        late = {"readmitted": happened, "crp_day30": round(rng.gamma(2, 20), 1)}
        rows.append({**own, "redcap_event_name": "day30_arm_1", **late})
    names = [*rows[0]][:2] + ["redcap_event_name", "redcap_repeat_instrument", "redcap_repeat_instance"]
    names += ["visit_date", "age", "sex", "crp", "demographics_complete", "lab_date", "hb", "readmitted", "crp_day30"]
    table = pd.DataFrame([{name: row.get(name, "") for name in names} for row in rows])
    table.to_csv(path, index=False)


def of_redcap(path):
    """As ``of_synthea``."""
    rows = pd.read_csv(path)
    table = {}
    for who, own in rows.groupby("record_id"):
        single = own[own["redcap_repeat_instrument"].isna()]
        base = single[single["redcap_event_name"] == "baseline_arm_1"].iloc[0]
        late = single[single["redcap_event_name"] == "day30_arm_1"].iloc[0]
        labs = own[(own["redcap_repeat_instrument"] == "labs") & (own["lab_date"] <= base["visit_date"])]
        labs = labs.sort_values("lab_date", kind="stable")
        line = {"site": base["redcap_data_access_group"], **{name: base[name] for name in ("age", "sex", "crp")}}
        line |= {"labs_hb_last": labs["hb"].iloc[-1] if len(labs) else None, "labs_hb_count": len(labs)}
        table[str(who)] = line | {"readmitted": late["readmitted"]}
    return table


def stays(root, n=40, seed=0):
    """A table of each patient with a row for each hour, in a folder for each hospital."""
    rng = np.random.default_rng(seed)
    for site in ("north", "south"):
        (root / site).mkdir()
        for k in range(n):
            hours = int(rng.integers(30, 90))
            ill = np.zeros(hours, dtype=int)
            if k % 2:
                ill[int(rng.integers(25, hours)) :] = 1
            heart = np.where(rng.random(hours) < 0.2, np.nan, (rng.normal(80, 10) + rng.normal(size=hours)).round(1))
            table = pd.DataFrame({"hour": range(hours), "heart_rate": heart, "sepsis": ill})
            table.to_csv(root / site / f"{site[0]}{k:04d}.csv", index=False)


def of_stays(root):
    """As ``of_synthea``: predictors until hour 24, the outcome from there on."""
    table = {}
    for path in root.glob("[ns]*/*.csv"):
        rows = pd.read_csv(path)
        early, late = rows[rows["hour"] <= 24], rows[rows["hour"] >= 24]
        heart = early["heart_rate"].dropna()
        line = {"heart_rate_last": heart.iloc[-1], "heart_rate_mean": heart.mean(), "site": path.parent.name}
        table[path.stem] = line | {"sepsis": int(late["sepsis"].max())}
    return table
