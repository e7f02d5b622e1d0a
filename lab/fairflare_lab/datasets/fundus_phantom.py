# SPDX-License-Identifier: Apache-2.0
"""Where are the optic disc and its cup? Drawn eyes, photographed by the different cameras of six sites.

Everything is drawn: no photograph and no patient is behind it, and no clinical claim is made. Lengths are shares of the
image's width unless a line says otherwise; x points right, y down, and (0, 0) is the image's centre.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairflare.core.seeds import derive
from fairflare.core.validation import Images
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.masks import PAPER, SMALL
from fairflare_lab.datasets.phantoms import Device, DeviceShift, smooth_field

CHANNELS = ("disc", "cup")
"""The optic disc with its cup, and the cup alone: one mask each."""
CUP_TO_DISC = (0.3, 0.9)
"""Range of the vertical cup-to-disc ratio, from healthy to advanced glaucoma; about half of all eyes are above .53."""
ATROPHY = 0.35
"""Share of eyes with a pale crescent of atrophy along the disc."""
RETINA = np.array(((0.60, 0.29, 0.16), (0.84, 0.47, 0.29)))[..., None, None]
"""Red, green and blue of the most and of the least pigmented retina: (2, 3, 1, 1)."""
RIM, CUP, SCLERA = np.array(((0.93, 0.68, 0.45), (0.99, 0.89, 0.70), (0.90, 0.76, 0.56)))[..., None, None]
"""Red, green and blue of the disc's rim, of its cup and of atrophy: (3, 1, 1) each."""
VESSELS = np.array(((0.84, 0.50, 0.47), (0.66, 0.36, 0.38)))[..., None, None]
"""What arteries and veins let through of the light that the tissue below them sends back: (2, 3, 1, 1)."""
LUMA = np.array((0.299, 0.587, 0.114))[:, None, None]


@dataclass(frozen=True)
class Camera(Device):
    """How one site's photographs look.

    Attributes:
        exposure: factor of brightness, > 0.
        warmth: factor of red over factor of blue, > 0; 1 is neutral.
        green: factor of green, > 0.
        saturation: distance of colours from grey, >= 0; 1 leaves them.
        gamma: exponent of the values, > 0; 1 leaves them, more is darker and of higher contrast.
        vignette: share of the light that is lost half a width off the centre, in [0, 1).
        slant: how much brighter one side is than the centre, in [0, 1); which side differs from image to image.
        haze: share of the light that a cloudy lens scatters evenly, in [0, 1).
        aperture: radius of the round field of view.
        blur: standard deviation of a Gaussian.
        noise: standard deviation per colour of values in [0, 1].
        compression: step that the lowest frequency of an 8 x 8 block is rounded to, for values in [0, 1]; 0: none.
    """

    factors = ("exposure", "warmth", "green", "saturation", "gamma")

    exposure: float = 1.0
    warmth: float = 1.0
    green: float = 1.0
    saturation: float = 1.0
    gamma: float = 1.0
    vignette: float = 0.15
    slant: float = 0.05
    haze: float = 0.0
    aperture: float = 0.54
    blur: float = 0.002
    noise: float = 0.01
    compression: float = 0.0


CAMERAS = (
    Camera("warm and saturated", exposure=0.85, warmth=1.5, green=0.9, saturation=1.2, aperture=0.5),
    Camera("greenish, lit from one side", warmth=0.8, green=1.3, slant=0.5, aperture=0.6),
    Camera("hazy: pale, with little contrast", exposure=1.1, saturation=0.6, haze=0.6, gamma=0.85, blur=0.008),
    Camera("dark towards the edge", exposure=0.75, warmth=1.2, vignette=0.6, gamma=1.3, noise=0.02, aperture=0.48),
    Camera("hand-held: noisy", exposure=0.85, warmth=0.6, slant=0.25, blur=0.01, noise=0.045, compression=0.06),
    Camera("plain: sharp and evenly lit"),
)
"""One per site."""


@dataclass(frozen=True)
class Disc:
    """Where an eye's optic disc and its cup are, on a (P, P) grid.

    Attributes:
        center: its x and y.
        diameter: horizontal and vertical on average.
        side: 1 where the macula is to the right of the disc, -1 to the left.
        away: (P, P) distance from the centre, 1 at the disc's edge.
        toward: (P, P) cosine of the angle between the direction of the macula and of the pixel.
        macula_away: (P, P) distance from the macula's centre in disc diameters.
        cup_away: (P, P) distance from the cup's centre, 1 at the cup's edge.
        ratio: height of the cup over height of the disc.
    """

    center: tuple[float, float]
    diameter: float
    side: float
    away: np.ndarray
    toward: np.ndarray
    macula_away: np.ndarray
    cup_away: np.ndarray
    ratio: float

    def shares(self) -> np.ndarray:
        """(2, P, P): how much of each pixel is disc and how much is cup, which is nowhere more."""
        radius = self.diameter / 2 * len(self.away)
        disc = np.clip((1 - self.away) * radius + 0.5, 0, 1)
        cup = np.clip((1 - self.cup_away) * radius * self.ratio + 0.5, 0, 1)
        return np.stack((disc, np.minimum(cup, disc)))


def eye(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A patient's retina without any camera's flaws, and where its disc and cup are.

    Small images are drawn at twice their size and averaged, as a sensor's large pixels do.

    Returns:
        image: float64 (3, size, size), red, green and blue, about [0, 1].
        masks: uint8 (2, size, size), 1 where at least half of the pixel is disc or cup; the cup lies in the disc.
    """
    zoom = 2 if size < 128 else 1
    pixels = size * zoom
    disc = _disc(pixels, rng)
    image = _on_disc(_retina(disc, rng), disc, rng)
    spared = 1 - np.exp(-((disc.macula_away / 0.4) ** 2))
    for color, share in zip(VESSELS, _vessels(disc, rng)):
        image = image * (1 - spared * share * (1 - color))
    image, shares = (part.reshape(-1, size, zoom, size, zoom).mean((2, 4)) for part in (image, disc.shares()))
    return image, (shares >= 0.5).astype(np.uint8)


def photographed(image: np.ndarray, camera: Camera, seed: int) -> np.ndarray:
    """What ``camera`` makes of an image of ``eye``: uint8 of the same shape, a function of the arguments alone.

    ``seed``: of what differs from image to image: exposure, colour balance, the side that is lit, and the noise.
    """
    from scipy.ndimage import gaussian_filter  # takes a while to import

    rng = np.random.default_rng(derive(seed, "photograph"))
    size = image.shape[-1]
    x, y = _grid(size)
    angle = rng.uniform(0, 2 * np.pi)
    light = 1 - camera.vignette * 4 * (x**2 + y**2) + camera.slant * 2 * (x * np.cos(angle) + y * np.sin(angle))
    colors = np.array((camera.warmth**0.5, camera.green, camera.warmth**-0.5)) * rng.uniform(0.96, 1.04, size=3)
    shown = image * np.clip(light, 0.05, None) * (colors * camera.exposure * rng.uniform(0.92, 1.08))[:, None, None]
    veil = shown.mean((1, 2)) * 0.6 + shown.mean() * 0.5
    shown = shown + camera.haze * (veil[:, None, None] - shown)
    grey = (shown * LUMA).sum(0)
    shown = np.clip(grey + camera.saturation * (shown - grey), 0, 1) ** camera.gamma
    shown = shown * np.clip((camera.aperture - np.hypot(x, y)) * size + 0.5, 0, 1)
    shown = gaussian_filter(shown, (0, camera.blur * size, camera.blur * size))
    shown = shown + camera.noise * rng.standard_normal(shown.shape)
    if camera.compression:
        shown = _compressed(shown, camera.compression)
    return (np.clip(shown, 0, 1) * 255).round().astype(np.uint8)


def _grid(pixels: int) -> tuple[np.ndarray, np.ndarray]:
    ticks = (np.arange(pixels) + 0.5) / pixels - 0.5
    x, y = np.meshgrid(ticks, ticks)
    return x, y


def _disc(pixels: int, rng: np.random.Generator) -> Disc:
    """A slightly tall, slightly tilted, slightly irregular ellipse with a cup of any size in it."""
    side = rng.choice((-1.0, 1.0))
    center = (-side * rng.uniform(0.0, 0.17), rng.uniform(-0.09, 0.09))
    diameter, tall = rng.uniform(0.19, 0.27), rng.uniform(0.98, 1.2)
    turn = np.radians(rng.uniform(-15, 15))
    dx, dy = ((ticks - c) * 2 / diameter for ticks, c in zip(_grid(pixels), center))
    u = (np.cos(turn) * dx + np.sin(turn) * dy) * tall**0.5
    v = (np.cos(turn) * dy - np.sin(turn) * dx) / tall**0.5
    away = np.hypot(u, v) / _ripple(np.arctan2(v, u), 0.025, rng)

    low, high = CUP_TO_DISC
    ratio = low + (high - low) * rng.beta(1.8, 2.8)
    cu = u - (1 - ratio) * side * rng.uniform(0, 0.3)
    cv = v - (1 - ratio) * rng.uniform(-0.2, 0.2)
    narrow = rng.uniform(1.0, 1.15)
    cup_away = np.hypot(cu * narrow, cv) / ratio / _ripple(np.arctan2(cv, cu), 0.025, rng)
    toward = side * dx / np.maximum(np.hypot(dx, dy), 1e-6)
    macula_away = np.hypot(dx / 2 - 2.5 * side, dy / 2 - 0.3)
    return Disc(center, diameter, side, away, toward, macula_away, cup_away, ratio)


def _ripple(angle: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """About 1, a little more in some directions and less in others."""
    phases = rng.uniform(0, 2 * np.pi, size=3)
    return 1 + strength / 3 * sum(np.cos(k * angle + phase) for k, phase in enumerate(phases, start=2))


def _retina(disc: Disc, rng: np.random.Generator) -> np.ndarray:
    """(3, P, P): pigment with the pattern of the choroid below it, nerve fibres around the disc, and the macula."""
    pigment = rng.uniform(0, 1)
    color = (pigment * RETINA[0] + (1 - pigment) * RETINA[1]) * rng.uniform(0.93, 1.07, (3, 1, 1))
    pixels = len(disc.away)
    pattern = 0.03 * smooth_field(pixels, 6, rng) + rng.uniform(0.01, 0.035) * smooth_field(pixels, 22, rng)
    fibres = 0.14 * np.exp(-np.maximum(disc.away - 1, 0) / 1.6) * (1 - 0.5 * abs(disc.toward))
    image = color * (1 + pattern) * np.array((1.0, 1.25, 1.1))[:, None, None] ** pattern
    image = image * (1 + fibres)
    macula = rng.uniform(0.25, 0.4) * np.exp(-2 * disc.macula_away**2) + 0.15 * np.exp(-16 * disc.macula_away**2)
    return image * (1 - macula * np.array((0.7, 1.0, 1.0))[:, None, None])


def _on_disc(image: np.ndarray, disc: Disc, rng: np.random.Generator) -> np.ndarray:
    """``image`` with atrophy where there is some, the disc's rim and its cup."""
    pixels = len(disc.away)
    radius = disc.diameter / 2 * pixels
    if rng.uniform() < ATROPHY:
        reach = rng.uniform(0.15, 0.6) * np.clip(disc.toward + rng.uniform(0.0, 0.6), 0, 1) ** 0.7
        reach = reach * (1 + 0.15 * smooth_field(pixels, 14, rng))
        share = np.clip((1 + reach - disc.away) * radius / 2, 0, 1) * rng.uniform(0.35, 0.75)
        image = image + share * (SCLERA - image)
    pink = np.array((0.0, 0.08, 0.08))[:, None, None] * rng.uniform()
    rim, pale = RIM * (1 - pink) * rng.uniform(0.9, 1.04), CUP * rng.uniform(0.92, 1.04)
    shade = 1 + 0.03 * smooth_field(pixels, 12, rng) - 0.06 * disc.toward * np.clip(disc.away, 0, 1)
    # The wall of the cup is a slope: its colour fades over a tenth of the disc and more, while the mask has an edge.
    slope = rng.uniform(0.12, 0.35)
    cup = np.clip((1 - disc.cup_away) * disc.ratio / slope + 0.5, 0, 1)
    edge = rng.uniform(0.05, 0.12)
    inside = np.clip((1 - disc.away) / edge + 0.5, 0, 1)
    return image + inside * (rim * shade + cup * (pale - rim * shade) - image)


def _vessels(disc: Disc, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """(P, P): the share of each pixel below arteries, then below veins.

    Four trunks leave the disc upwards and downwards, two of them to arch around the macula; thin ones leave sideways.
    """
    toward, down = np.array([(a, b) for _ in range(2) for a in (1, -1) for b in (-1, 1)]).T
    arching, thin = toward > 0, np.arange(8) > 3
    for width, steep in ((0.024, 0.0), (0.032, 0.12)):
        x, y = rng.normal(0, 0.04, (2, 8)) + np.array(disc.center)[:, None] / disc.diameter
        lean = np.where(arching, rng.uniform(0.15, 0.45, 8), rng.uniform(0.3, 0.8, 8)) + steep
        lean = np.where(thin, rng.uniform(1.1, 1.5, 8), lean)
        bend = np.where(arching, rng.uniform(0.3, 0.5, 8), rng.uniform(-0.05, 0.2, 8)) * ~thin
        length = np.where(thin, rng.uniform(0.8, 1.5, 8), rng.uniform(3.0, 4.2, 8))
        widths = width * np.where(thin, 0.45, 1) * rng.uniform(0.85, 1.15, 8)
        canvas = np.zeros_like(disc.away)
        curves = np.stack((x - 0.1 * disc.side, y, toward * disc.side, down, lean, bend, length, widths))
        _grow(canvas, disc.diameter, curves, (5, 2), rng)
        yield canvas


def _grow(canvas: np.ndarray, unit: float, curves: np.ndarray, branches: tuple[int, ...], rng: np.random.Generator):
    """Draw n curves and what branches off them.

    Args:
        canvas: (P, P), drawn on.
        unit: the disc's diameter, in which all other lengths are.
        curves: (8, n): x and y of the start; 1 or -1, the direction to the side and down that counts as positive; angle
            from the vertical at the start and its change per unit of length; length; half a width.
        branches: how many leave each curve, how many leave each of those, and so on.
    """
    n, count = curves.shape[1], int(curves[6].max() * unit * len(canvas)) + 16
    t = np.linspace(0, 1, count)
    x, y, across, down, lean, bend, length, width = curves[..., None]
    waves, phase, swing = rng.uniform((0.3, 0, 0.05), (0.8, 2 * np.pi, 0.16), (n, 3)).T[..., None]
    angle = lean + bend * length * t + swing * np.sin(2 * np.pi * waves * length * t + phase)
    x = x + np.cumsum(across * np.sin(angle) * length / count, axis=1)
    y = y + np.cumsum(down * np.cos(angle) * length / count, axis=1)
    half = width * (1 - 0.45 * t)
    _paint(canvas, np.stack((x.ravel(), y.ravel()), axis=1) * unit, half.ravel() * unit)
    if branches:
        k = branches[0]
        share, row = rng.uniform(0.15, 0.9, (n, k)), np.arange(n)[:, None]
        at, turn = (share * count).astype(int), rng.choice((-1.0, 1.0), (n, k))
        lean, bend = angle[row, at] + turn * rng.uniform(0.4, 0.9, (n, k)), -turn * rng.uniform(0, 0.4, (n, k))
        rest = length * (1 - share) * rng.uniform(0.3, 0.8, (n, k)) + 0.15
        signs = (across.repeat(k, 1), down.repeat(k, 1))
        thinner = half[row, at] * rng.uniform(0.5, 0.75, (n, k))
        curves = np.stack((x[row, at], y[row, at], *signs, lean, bend, rest, thinner)).reshape(8, -1)
        _grow(canvas, unit, curves, branches[1:], rng)


def _paint(canvas: np.ndarray, points: np.ndarray, half: np.ndarray) -> None:
    """Raise (P, P) ``canvas`` to 1 within ``half`` (m,) of ``points`` (m, 2)."""
    pixels = len(canvas)
    points, half = (points + 0.5) * pixels - 0.5, half * pixels
    reach = int(np.ceil(half.max() + 0.5))
    inside = ((points > -reach) & (points < pixels + reach - 1)).all(1)
    points, half = points[inside], half[inside]
    nearest = points.round().astype(int)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            x, y = nearest[:, 0] + dx, nearest[:, 1] + dy
            share = np.clip(half + 0.5 - np.hypot(x - points[:, 0], y - points[:, 1]), 0, 1)
            seen = (share > 0) & (x >= 0) & (x < pixels) & (y >= 0) & (y < pixels)
            np.maximum.at(canvas, (y[seen], x[seen]), share[seen])


def _compressed(image: np.ndarray, step: float) -> np.ndarray:
    """What rounding the cosine transform of 8 x 8 blocks leaves of (C, P, P); higher frequencies are rounded more."""
    k = np.arange(8)
    basis = np.cos(np.pi * (2 * k[None] + 1) * k[:, None] / 16) * np.where(k[:, None], 0.5, 8**-0.5)
    channels, size, _ = image.shape
    blocks = image.reshape(channels, size // 8, 8, size // 8, 8)
    waves = np.einsum("ui,cbidj->cbudj", basis, blocks)
    waves = np.einsum("vj,cbudj->cbudv", basis, waves)
    steps = (step * (1 + k[:, None] / 2 + k[None] / 2))[:, None, :]
    waves = (waves / steps).round() * steps
    blocks = np.einsum("ui,cbudv->cbidv", basis, waves)
    return np.einsum("vj,cbidv->cbidj", basis, blocks).reshape(image.shape)


@dataclass(frozen=True)
class FundusPhantom(DeviceShift):
    """Segmentation under domain shift as on the retina data of FedCE (arXiv:2303.16520) and Fed-LWR; all of it drawn.

    Every site has one camera and a number of patients of its own. The options are those of ``DeviceShift``, with six
    cameras. The smallest sites have about 1/20 of all images, the largest nearly half of them.
    """

    name = "fundus-phantom"
    title = "Optic disc and cup in simulated fundus photographs from different cameras"
    real = "nothing"
    simulated = "everything: the eyes with their discs, cups and vessels, the sites and their cameras"
    classes = CHANNELS
    presets = {
        "small": Preset(
            "6 sites with a camera each, 64 pixels, a small U-Net; a minute on a laptop",
            {},
            dataclasses.replace(SMALL, weight_decay=0.0),
        ),
        "paper": Preset(
            "FedCE's setting and site sizes: 256 pixels, its U-Net with BatchNorm, 200 rounds; for a GPU",
            {"images": 1810, "size": 256, "model": "unet", "norm": "batch"},
            dataclasses.replace(PAPER, weight_decay=0.0),
        ),
    }

    devices = CAMERAS
    shares = (50, 98, 47, 230, 80, 400)  # training images of FedCE's six retina sites
    held_out = (0.25, 0.25)
    mean = (0.52, 0.29, 0.20)
    std = (0.27, 0.17, 0.13)

    images: Images = 600

    def image(self, i: int, device: Camera) -> tuple[np.ndarray, np.ndarray]:
        image, masks = eye(self.size, np.random.default_rng(derive(self.data_seed, self.name, "patient", i)))
        return photographed(image, device, derive(self.data_seed, self.name, "photograph", i)), masks
