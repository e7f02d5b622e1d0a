# SPDX-License-Identifier: Apache-2.0
"""Startup kits as identities: a key counts when root, certificate and signature agree."""

from types import SimpleNamespace

import pytest

from fairflare.core.errors import UserError
from fairflare.flare.credentials import OF_CLIENT, Certificate, server_credentials, site_credentials
from fairflare.privacy.identity import NoIdentity
from fairflare.privacy.sum_keys import PairwiseKeys, verified
from fairflare.privacy.sum_protocol import SumOrder, SumRefused
from kits import certificate, new_key, write_kit

RUN = "a run"


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """The kits of three sites of one federation, of a "b" of another, and of some that are no sites, or no longer."""
    folder, found = tmp_path_factory.mktemp("kits"), {}
    for federation, sites in (("ours", "abc"), ("theirs", "b")):
        root = new_key()
        pem = certificate("root", root, "root", root, ca=True)
        for site in sites:
            found[federation, site] = write_kit(folder / f"{federation}_{site}", site, root, pem)
        if federation == "ours":
            found["admin"] = write_kit(folder / "admin", "b", root, pem, role="lead")
            found["server"] = write_kit(folder / "server", "hub.org", root, pem)
            found["expired"] = write_kit(folder / "expired", "b", root, pem, days=(-9, -1))
    return found


def member(site, kit):
    return PairwiseKeys(site, RUN, Certificate(kit, OF_CLIENT))


def order_of(sites):
    return SumOrder(1, 0, {name: site.statement() for name, site in sites.items()})


def test_sites_of_one_federation_believe_each_other(kits):
    sites = {site: member(site, kits["ours", site]) for site in "abc"}
    for site in sites.values():
        site.check(order_of(sites))


@pytest.mark.parametrize("forger", [("theirs", "b"), ("ours", "c"), None], ids=str)
def test_a_key_in_anothers_name_is_refused(kits, forger):
    """By a certificate of another federation, of another site, or by none: the server cannot take a site's place."""
    sites = {site: member(site, kits["ours", site]) for site in "abc"}
    sites["b"] = member("b", kits[forger]) if forger else PairwiseKeys("b", RUN, NoIdentity())
    with pytest.raises(SumRefused, match="b: a key that is not its own"):
        sites["a"].check(order_of(sites))


@pytest.mark.parametrize("kit, name", [("admin", "b"), ("server", "hub.org"), ("expired", "b")])
def test_who_is_no_site_has_no_say(kits, kit, name):
    """Server and administrators have certificates of the same root: a roster cannot be filled with them."""
    sites = {site: member(site, kits["ours", site]) for site in "ac"} | {name: member(name, kits[kit])}
    with pytest.raises(SumRefused, match=f"{name}: a key that is not its own"):
        sites["a"].check(order_of(sites))


def test_a_kit_that_lacks_its_key_is_not_taken_for_a_simulation(tmp_path):
    (tmp_path / "fed_client.json").write_text("{}")
    with pytest.raises(UserError, match="lacks rootCA.pem or client.key"):
        site_credentials(context_of(tmp_path))


@pytest.mark.parametrize("part", ["key", "certificate", "signature"])
def test_no_part_of_a_statement_can_be_exchanged(kits, part):
    mine, other = (member("b", kits["ours", "b"]).statement() for _ in range(2))
    third = member("c", kits["ours", "c"]).statement()
    identity = Certificate(kits["ours", "a"])
    assert verified(RUN, "b", mine, identity) and not verified("another run", "b", mine, identity)
    replaced = {"key": other, "certificate": third, "signature": other}[part]
    assert not verified(RUN, "b", {**mine, part: replaced[part]}, identity)
    assert not verified(RUN, "b", {**mine, part: "nonsense"}, identity)


def context_of(kit):
    workspace = SimpleNamespace(get_startup_kit_dir=lambda: str(kit))
    return SimpleNamespace(get_engine=lambda: SimpleNamespace(get_workspace=lambda: workspace))


def test_a_kit_without_certificates_takes_everyones_word_and_one_with_them_does_not(kits, tmp_path):
    assert isinstance(site_credentials(context_of(tmp_path)).identity, NoIdentity)
    assert isinstance(server_credentials(context_of(tmp_path)).identity, NoIdentity)
    with_kit = context_of(kits["ours", "a"])
    assert isinstance(site_credentials(with_kit).identity, Certificate)
    assert server_credentials(with_kit).identity.sign(b"x") == {}


def test_a_kit_without_tenseals_context_says_what_to_do(kits, monkeypatch):
    monkeypatch.delenv("FAIRFLARE_RUN_FOLDER", raising=False)
    with pytest.raises(UserError, match="no client_context.tenseal; provision with FLARE's HEBuilder"):
        site_credentials(context_of(kits["ours", "a"])).ckks()
