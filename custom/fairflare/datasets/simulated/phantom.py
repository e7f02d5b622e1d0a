# SPDX-License-Identifier: Apache-2.0
"""CT-like head slices with one simulated bleed, placed where anatomy puts each of the RSNA challenge's five subtypes.

Grey values follow the usual brain window (level 40, width 80 HU): air 0, CSF .13, white matter .36, grey matter .46,
fresh blood .6 to .8, bone 1. The bleeds are simulated; nothing here is a patient, and no clinical claim is made.
"""

from __future__ import annotations

import numpy as np

from fairflare.datasets.simulated.anatomy import Head, atlas, patient, smooth_field, soft

CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
SHARES = (0.10, 0.20, 0.15, 0.20, 0.35)
"""How common each class is: about as imbalanced as the 25,000 slices of FedISM+ (without their 2 % of epidurals)."""
CSF, WHITE, GREY, SCALP, BONE = 0.13, 0.36, 0.46, 0.34, 1.0
GAP = 2.0
"""Millimetres of CSF between brain and skull."""


def render(label: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """One image of class ``label``: uint8 (size, size), a function of ``rng`` alone.

    Small images are drawn at twice their size and averaged, as a scanner's thick pixels do.
    """
    zoom = 2 if size < 128 else 1
    head = patient(size * zoom, rng)
    ventricle = head.ventricle + rng.uniform(0, 2.5)  # wider with age
    image = _tissue(head, ventricle, rng)
    blood, swelling = BLEEDS[label](head, ventricle, rng)
    level = rng.uniform(0.62, 0.78) + 0.03 * smooth_field(size * zoom, 12, rng)
    image = image - 0.12 * swelling
    image = image + blood * (level - image)
    image = image.reshape(size, zoom, size, zoom).mean((1, 3))
    image = image * rng.uniform(0.95, 1.05) + 0.02 * rng.standard_normal((size, size))
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def _tissue(head: Head, ventricle: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The head without a bleed."""
    grey, white = head.grey * (1 - soft(ventricle)), head.white * (1 - soft(ventricle))
    brain = GREY * grey + WHITE * white + CSF * np.clip(1 - grey - white, 0, 1)
    outside = -head.depth - GAP
    bone, scalp = rng.uniform(6, 9), rng.uniform(3, 6)
    layers = ((CSF, -GAP), (BONE, 0.0), (SCALP, bone), (0.0, bone + scalp))
    for value, start in layers:
        brain = brain + soft(outside - start) * (value - brain)
    return brain


def _under_skull(head: Head, thickness: np.ndarray) -> np.ndarray:
    """1 between the skull's inner table and ``thickness`` millimetres below it."""
    below = head.depth + GAP
    return soft(below) * soft(thickness - below) * (thickness > 0)


def _off(head: Head, angle: float) -> np.ndarray:
    """Angle in radians, -pi to pi, that each pixel is away from direction ``angle``; 0 is right, pi / 2 front."""
    return (np.arctan2(head.y, head.x) - angle + np.pi) % (2 * np.pi) - np.pi


def _lateral(rng: np.random.Generator, spread: float) -> float:
    """A direction at most ``spread`` degrees in front of or behind the left or right side."""
    return rng.choice((0.0, np.pi)) + np.radians(rng.uniform(-spread, spread))


def _epidural(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """A lens between skull and dura: short and thick."""
    off = _off(head, _lateral(rng, 50))
    half_length = rng.uniform(20, 32)
    along = np.hypot(head.x, head.y) * off / half_length
    thickness = half_length * rng.uniform(0.45, 0.65) * (1 - along**2)
    return _under_skull(head, np.where(abs(off) < 1, thickness, 0)), 0.0


def _subdural(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """A crescent over much of one hemisphere: long and thin, ending at the midline."""
    angle = _lateral(rng, 25)
    off = _off(head, angle) / np.radians(rng.uniform(45, 75))
    side = soft(head.x * np.sign(np.cos(angle)) - 4)
    return _under_skull(head, rng.uniform(6, 11) * (1 - off**4)) * side, 0.0


def _intraparenchymal(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """An irregular blob in the white matter with a dark rim of oedema."""
    template = atlas()
    places = template.white[head.slice]
    x, y = places[rng.integers(len(places))] - template.centre
    turn, stretch = rng.uniform(0, np.pi), rng.uniform(1, 1.6)
    u = np.cos(turn) * (head.x - x) + np.sin(turn) * (head.y - y)
    v = np.cos(turn) * (head.y - y) - np.sin(turn) * (head.x - x)
    distance = np.hypot(u, v * stretch) * (1 + 0.2 * smooth_field(len(u), 20, rng))
    radius = rng.uniform(9, 17)
    tissue = soft(head.depth) * (1 - soft(ventricle))
    return soft(radius - distance) * soft(head.depth - 3), soft(radius + 5 - distance, 6.0) * tissue


def _intraventricular(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """Blood that fills the ventricles, their lower (posterior) part or one side of them."""
    part = rng.choice(3, p=(0.5, 0.25, 0.25))
    where = (1.0, soft(rng.uniform(-5, 15) - head.y, 6.0), soft(rng.choice((-1, 1)) * head.x + 4, 6.0))[part]
    return soft(ventricle + 1) * where, 0.0


def _subarachnoid(head: Head, ventricle: np.ndarray, rng: np.random.Generator):
    """Blood in the sulci and cisterns of a region, not in the ventricles."""
    fluid = np.clip((1 - head.grey - head.white) / 0.2, 0, 1)
    sulci = fluid * soft(head.depth + GAP) * (1 - soft(ventricle + 3))
    region = np.exp(-((_off(head, rng.uniform(-np.pi, np.pi)) / np.radians(rng.uniform(40, 80))) ** 2))
    return sulci * region, 0.0


BLEEDS = (_epidural, _intraparenchymal, _intraventricular, _subarachnoid, _subdural)
"""Per class: the shares of blood and of swollen tissue in each pixel, (P, P) in [0, 1]."""
