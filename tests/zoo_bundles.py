# SPDX-License-Identifier: Apache-2.0
"""Configurations of two public MONAI bundles, rebuilt with tiny networks: MedNIST's classes, the spleen in CT."""

import json


def image_input(channels, shape):
    image = {"type": "image", "num_channels": channels, "spatial_shape": shape, "dtype": "float32"}
    return {"network_data_format": {"inputs": {"image": image}}, "version": "0.1.0"}


def write(folder, train, meta):
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "train.json").write_text(json.dumps(train, indent=4))
    (folder / "configs" / "metadata.json").write_text(json.dumps(meta, indent=4))
    return folder


HEAD = {
    "imports": ["$import glob", "$import os", "$import ignite"],
    "bundle_root": ".",
    "ckpt_dir": "$@bundle_root + '/models'",
    "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
    "network": "$@network_def.to(@device)",
    "max_epochs": 5,
}


def mednist(folder, **changes):
    """In the manner of MedNIST's: DenseNet, cross-entropy, random rotations, flips and zooms."""
    keys = {"keys": "@image_key"}
    first = [
        {"_target_": "LoadImaged", **keys},
        {"_target_": "EnsureChannelFirstd", **keys},
        {"_target_": "Resized", **keys, "spatial_size": "@size"},
        {"_target_": "ScaleIntensityd", **keys},
    ]
    last = [{"_target_": "EnsureTyped", **keys, "dtype": "$torch.float32"}]
    turn = [
        {"_target_": "RandRotated", **keys, "range_x": "$np.pi / 12", "prob": 0.5, "keep_size": True},
        {"_target_": "RandFlipd", **keys, "spatial_axis": 0, "prob": 0.5},
        {"_target_": "RandZoomd", **keys, "min_zoom": 0.9, "max_zoom": 1.1, "prob": 0.5},
    ]
    train = HEAD | {
        "image_key": "image",
        "size": "$[@edge] * 2",
        "edge": 32,
        "network_def": {
            "_target_": "monai.networks.nets.DenseNet",
            "spatial_dims": 2,
            "in_channels": 1,
            "out_channels": 2,
            "init_features": 8,
            "growth_rate": 4,
            "block_config": [2, 2],
        },
        "loss": {"_target_": "torch.nn.CrossEntropyLoss"},
        "optimizer": {"_target_": "torch.optim.Adam", "params": "$@network.parameters()", "lr": 0.005},
        "train": {
            "preprocessing": {"_target_": "Compose", "transforms": [*first, *turn, *last]},
            "dataloader": {"_target_": "DataLoader", "dataset": "@train#dataset", "batch_size": 8, "shuffle": True},
            "inferer": {"_target_": "SimpleInferer"},
        },
        "validate": {
            "preprocessing": {"_target_": "Compose", "transforms": [*first, *last]},
            "inferer": {"_target_": "SimpleInferer"},
            "key_metric": {"accuracy": {"_target_": "ignite.metrics.Accuracy", "output_transform": "$lambda x: x"}},
        },
    }
    return write(folder, train | changes, image_input(1, [32, 32]))


def spleen(folder, **changes):
    """In the manner of spleen_ct_segmentation: U-Net, Dice and cross-entropy, patches, a sliding window."""
    keys = {"keys": ["image", "label"]}
    fixed = [
        {"_target_": "LoadImaged", **keys},
        {"_target_": "EnsureChannelFirstd", **keys},
        {"_target_": "Orientationd", **keys, "axcodes": "RAS"},
        {"_target_": "Spacingd", **keys, "pixdim": [3.0, 3.0, 3.0], "mode": ["bilinear", "nearest"]},
        {
            "_target_": "ScaleIntensityRanged",
            "keys": "image",
            **{"a_min": 0, "a_max": 600, "b_min": 0.0, "b_max": 1.0, "clip": True},
        },
        {"_target_": "EnsureTyped", **keys},
    ]
    crops = {
        "_target_": "RandCropByPosNegLabeld",
        **keys,
        "label_key": "label",
        "spatial_size": "@patch",
        **{"pos": 1, "neg": 1, "num_samples": 2, "image_key": "image", "image_threshold": 0},
    }
    flips = {"_target_": "RandFlipd", **keys, "spatial_axis": [0], "prob": 0.5}
    train = HEAD | {
        "dataset_dir": "/workspace/data/Task09_Spleen",
        "images": "$list(sorted(glob.glob(@dataset_dir + '/imagesTr/*.nii.gz')))",
        "patch": [16, 16, 16],
        "network_def": {
            "_target_": "UNet",
            "spatial_dims": 3,
            "in_channels": 1,
            "out_channels": 2,
            "channels": [4, 8],
            "strides": [2],
            "num_res_units": 1,
            "norm": "batch",
        },
        "loss": {"_target_": "DiceCELoss", "to_onehot_y": True, "softmax": True, "squared_pred": True, "batch": True},
        "optimizer": {"_target_": "torch.optim.Adam", "params": "$@network.parameters()", "lr": 0.02},
        "train": {
            "deterministic_transforms": fixed,
            "random_transforms": [crops, flips],
            "preprocessing": {
                "_target_": "Compose",
                "transforms": "$@train#deterministic_transforms + @train#random_transforms",
            },
            "dataloader": {"_target_": "DataLoader", "dataset": "@train#dataset", "batch_size": 2, "shuffle": True},
            "inferer": {"_target_": "SimpleInferer"},
            "handlers": [{"_target_": "CheckpointSaver", "save_dir": "@ckpt_dir", "save_dict": {"model": "@network"}}],
        },
        "validate": {
            "preprocessing": {"_target_": "Compose", "transforms": "%train#deterministic_transforms"},
            "inferer": {
                "_target_": "SlidingWindowInferer",
                **{"roi_size": "@patch", "sw_batch_size": 4, "overlap": 0.5},
            },
            "key_metric": {"val_mean_dice": {"_target_": "MeanDice", "include_background": False}},
        },
    }
    return write(folder, train | changes, image_input(1, [16, 16, 16]))
