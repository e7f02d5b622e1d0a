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
