# SPDX-License-Identifier: Apache-2.0
"""CKKS sums through TenSEAL: right to nine digits over seventy powers of ten, unreadable for the server."""

import pytest

from fairflare.core.errors import UserError
from fairflare.privacy import secure_sums as masks
from fairflare.privacy.secure_sums import MaskedSums
from fairflare.privacy.sum_keys import PairwiseKeys
from fairflare.privacy.sum_protocol import SumOrder, SumRefused
from fairflare_lab.privacy import encrypted_sums as checked

ts = pytest.importorskip("tenseal", reason="the extra he is not installed")

from cases import each  # noqa: E402
from fairflare_lab.privacy.encrypted_sums import (  # noqa: E402
    CheckedSums,  # noqa: E402
    EncryptedSums,
    added,
    new_contexts,
)

NAMES = "abc"
ORDER = SumOrder(1, 0, {name: {} for name in NAMES})


@pytest.fixture(scope="module")
def contexts():
    return new_contexts()


def summed(contexts, *columns):
    sites = {name: EncryptedSums(contexts[0]) for name in NAMES}
    values = {name: [column[k] for column in columns] for k, name in enumerate(NAMES)}
    total = added([sites[name].seal(values[name], ORDER)["sum"] for name in NAMES], contexts[1])
    return sites["a"].open(total, len(columns))


@each(
    "column",
    [
        (1e-20, 3e-20, 2e-21),
        (1e-9, 1e-3, 1.0),
        (0.5, 0.25, 0.125),
        (1e20, 3e19, 1e12),
        (1e-40, 2e-40, 5e-40),
        (1e36, 3e35, 1e20),
        (0.0, 0.0, 1e-6),
        (7.0, 7.0, 7.0),
    ],
    ids=str,
)
def test_the_sum_is_right_to_nine_digits(contexts, column):
    assert summed(contexts, column) == pytest.approx([sum(column)], rel=1e-9, abs=0)


def test_zeros_are_zero_and_columns_do_not_mix(contexts):
    found = summed(contexts, (0.0, 0.0, 0.0), (1e-12, 2e-12, 3e-12), (1e9, 1.0, 0.0))
    assert found == pytest.approx([0.0, 6e-12, 1e9 + 1], rel=1e-9, abs=0)


def test_the_server_cannot_read_what_it_adds(contexts):
    sealed = EncryptedSums(contexts[0]).seal([3.0], ORDER)["sum"]
    public = ts.context_from(contexts[1])
    assert not public.has_secret_key() and len(sealed) < 2**19
    with pytest.raises(ValueError, match="secret_key"):
        ts.ckks_vector_from(public, sealed).decrypt()
    with pytest.raises(UserError, match="no secret key"):
        EncryptedSums(contexts[1])


def test_no_two_ciphertexts_of_one_number_are_alike(contexts):
    assert len({EncryptedSums(contexts[0]).seal([3.0], ORDER)["sum"] for _ in range(3)}) == 3


@pytest.mark.parametrize("sealed", [b"", b"noise" * 100])
def test_what_is_no_ciphertext_is_refused(contexts, sealed):
    with pytest.raises(SumRefused):
        added([sealed, sealed], contexts[1])
    with pytest.raises(SumRefused):
        EncryptedSums(contexts[0]).open(sealed, 1)


def test_flares_own_contexts_will_do():
    """What FLARE's HEBuilder writes into the startup kits."""
    from nvflare.lighter.impl.he import HEBuilder

    builder = HEBuilder()
    builder.initialize(None, None)
    contexts = builder.get_serialized_context(is_client=True), builder.get_serialized_context()
    assert summed(contexts, (1e-6, 2e-6, 3e-6)) == pytest.approx([6e-6], rel=1e-9)


@pytest.fixture
def copied(contexts):
    """Three sites that have sealed numbers, and what the server makes of these."""
    keys = {name: PairwiseKeys(name, "a run") for name in NAMES}
    order = SumOrder(1, 0, {name: own.statement() for name, own in keys.items()})
    sites = {name: CheckedSums(EncryptedSums(contexts[0]), MaskedSums(own), contexts[0]) for name, own in keys.items()}
    sealed = {name: site.seal([k + 0.5, 1e-20, 0.0], order)["sum"] for k, (name, site) in enumerate(sites.items())}
    return sites, checked.combine(sealed, contexts[1])


def test_every_site_opens_and_checks_the_sums(copied):
    sites, total = copied
    for site in sites.values():
        assert site.open(total, 3) == pytest.approx([4.5, 3e-20, 0.0], rel=1e-9, abs=0)


def test_the_copies_say_nothing_to_who_lacks_the_sites_key(copied):
    """Masked numbers alone could be added up by anyone."""
    _, total = copied
    with pytest.raises(SumRefused, match="do not cancel"):
        masks.combine(list(total["copies"].values()))


@pytest.mark.parametrize("change", ["ciphertext", "copy", "fewer", "form"])
def test_sums_that_are_not_everyones_are_refused(copied, contexts, change):
    sites, total = copied
    public = ts.context_from(contexts[1])
    doubled = (ts.ckks_vector_from(public, total["total"]) * 2.0).serialize()
    flipped = bytes([total["copies"]["b"][0] ^ 1]) + total["copies"]["b"][1:]
    wrong = {
        "ciphertext": {**total, "total": doubled},
        "copy": {**total, "copies": {**total["copies"], "b": flipped}},
        "fewer": {**total, "copies": {name: total["copies"][name] for name in "ab"}},
        "form": total["total"],
    }[change]
    with pytest.raises(SumRefused):
        sites["a"].open(wrong, 3)


def test_all_kits_have_the_same_bytes():
    """The key of the copies follows from them."""
    from nvflare.lighter.impl.he import HEBuilder

    builder = HEBuilder()
    builder.initialize(None, None)
    assert len({bytes(builder.get_serialized_context(is_client=True)) for _ in range(3)}) == 1
