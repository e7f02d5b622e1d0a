# SPDX-License-Identifier: Apache-2.0
"""A log that its sites can check: heads signed by the server, answers by the sites, and what a verifier finds."""

import copy
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core import schema
from fairflare.core.errors import DataError
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine import loop
from fairflare.engine.audit import GENESIS, entry_hash, verify
from fairflare.engine.countersigned import MOST_CERTIFICATES, UNSIGNED, Countersigned
from fairflare.engine.files import read_tensors, save_tensors
from fairflare.engine.setup.assembly import build_federation
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.credentials import OF_CLIENT, OF_SERVER, Certificate, Heads
from fairflare.privacy import log_verifier
from fairflare.privacy.statements import LAST, answer_bytes, head_bytes, numbers_hash
from fairflare.report.write import verify_run, write_report
from kits import certificate, new_key, write_kit

ROUNDS, HUB = 3, "hub.org"


class WithHeads:
    """A transport whose sites keep heads and sign answers, as ``FairExecutor`` and ``EgressFilter`` have them do."""

    def __init__(self, transport, heads, silent=()):
        self.transport, self.heads, self.silent = transport, heads, silent

    def sites(self):
        return self.transport.sites()

    def exchange(self, instructions):
        for site, one in instructions.items():
            self.heads[site].receive(one)
        asked = {site: one for site, one in instructions.items() if not one.log.get(LAST)}
        answers = list(self.transport.exchange(asked)) + [Answer(site=s) for s in instructions.keys() - asked.keys()]
        for answer in answers:
            signed = {} if answer.site in self.silent else self.heads[answer.site].sign(answer)
            yield dataclasses.replace(answer, signed=signed)


def federation(folder, kits, silent=()):
    """A finished run with its reports, signed, and each site's file of heads beside it."""
    config = make_config(
        "fedavg",
        "support2:dirichlet",
        rounds=ROUNDS,
        seed=0,
        sites=3,
        values={"min_sites": 2, "model": "linear", "batch_size": 512},
    )
    parts = build_parts(config)
    run = folder / "run"
    run.mkdir(parents=True)
    with LocalSites(config, folder / "sites", parts) as sites:
        names = sites.transport.sites()
        own = {name: folder / f"{name}.heads.jsonl" for name in names}
        heads = {name: Heads(own[name], name, Certificate(kits[name], OF_CLIENT)) for name in names}
        made = build_federation(config, parts, WithHeads(sites.transport, heads, silent), run, "local")
        made.signer = Certificate(kits[HUB], OF_SERVER)
        made.run(parts.model)
    write_report(run)
    made.countersign()
    return SimpleNamespace(run=run, heads=own, root=kits[HUB] / "rootCA.pem", names=names)


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder, root = tmp_path_factory.mktemp("kits"), new_key()
    pem = certificate("root", root, "root", root, ca=True)
    sites = {name: write_kit(folder / name, name, root, pem) for name in ("site-1", "site-2", "site-3")}
    return sites | {HUB: write_kit(folder / HUB, HUB, root, pem, own="server")}


@pytest.fixture(scope="module")
def signed(tmp_path_factory, kits):
    return federation(tmp_path_factory.mktemp("signed"), kits)


@pytest.fixture(scope="module")
def other(tmp_path_factory, kits):
    """Another job of the same sites, of which the third signs nothing."""
    return federation(tmp_path_factory.mktemp("other"), kits, silent=("site-3",))


def log_of(made):
    return [json.loads(line) for line in (made.run / "audit.jsonl").read_text().splitlines()]


def forged(entries, keys):
    """A whole chain of the entries, with heads and answers signed anew by those whose ``keys`` the forger has."""
    made = []
    for number, entry in enumerate(entries):
        entry |= {"seq": number, "prev": made[-1]["hash"] if made else GENESIS}
        if "head" in entry and HUB in keys and made:
            head = {"log": made[0]["hash"], "seq": number - 1, "hash": made[-1]["hash"]}
            signature = keys[HUB].sign(head_bytes(head))["signature"]
            entry["head"] |= {**head, "signature": signature}
        for site in keys.keys() & entry.get("signed", {}).keys():
            one = entry["signed"][site]
            said = answer_bytes(site, one["task"], one["round"], entry["head"]["hash"], one["update"], one["numbers"])
            one["signature"] = keys[site].sign(said)["signature"]
        made.append({**{k: v for k, v in entry.items() if k != "hash"}, "hash": entry_hash(entry)})
    return made


def write_log(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def put(*path, value):
    """A change of what stands at ``path`` in the log."""

    def change(entries):
        *way, last = path
        found = entries
        for key in way:
            found = found[key]
        assert found[last] != value
        found[last] = value

    return change


def swap(entries):
    entries[1], entries[2] = entries[2], entries[1]


def insert(entries):
    entries.insert(4, {"event": "after", "time": entries[4]["time"], "model_sha256": entries[3]["model_sha256"]})


def leave_out(entries):
    for place in (entries[2]["accepted"], entries[2]["signed"]):
        del place["site-3"]
    entries[2]["rejected"]["site-3"] = {"code": "late", "detail": "late"}


def another_update(entries):
    entries[2]["signed"]["site-3"], entries[2]["accepted"]["site-3"] = entries[2]["signed"]["site-1"], {}


NOBODY = "0" * 64
CHANGES = {
    "another seed": put(0, "seed", value=7),
    "another configuration": put(0, "config_sha256", value=NOBODY),
    "another first model": put(0, "model_sha256", value=NOBODY),
    "more patients declared": put(0, "declared", "site-3", value=9999),
    "a round's weights": put(1, "weights", "site-1", value=0.9),
    "numbers of the reader's": put(2, "accepted", "site-2", "metrics", "auc", value=0.99),
    "numbers of another's": put(2, "accepted", "site-3", "metrics", "auc", value=0.99),
    "numbers of the forger's": put(1, "accepted", "site-1", "metrics", "auc", value=0.99),
    "a round's model": put(2, "model_sha256", value=NOBODY),
    "the rule's state": put(3, "state_sha256", value=NOBODY),
    "a round's time": put(2, "time", value="2020-01-01T00:00:00.000+00:00"),
    "the reader's update": put(2, "signed", "site-2", "update", value=NOBODY),
    "another's update": put(2, "signed", "site-3", "update", value=NOBODY),
    "the forger's update": put(2, "signed", "site-1", "update", value=NOBODY),
    "one's update as another's": another_update,
    "a signature dropped": lambda entries: entries[2]["signed"].pop("site-3"),
    "all signatures dropped": lambda entries: [entry.pop("signed", 0) and entry.pop("head") for entry in entries],
    "a site left out": leave_out,
    "a round dropped": lambda entries: entries.pop(2),
    "rounds reordered": swap,
    "an entry inserted": insert,
    "the reader's evaluation": put(4, "sites", "site-2", "test", "auc", value=0.99),
    "another's evaluation": put(4, "sites", "site-3", "test", "auc", value=0.99),
    "another reason": put(5, "reason", value="stopped"),
    "another report": put(6, "files", "report.json", value=NOBODY),
}
CUT = {
    "cut after a round": lambda entries: entries[:3],
    "cut before its end": lambda entries: entries[:5],
    "cut before the report": lambda entries: entries[:6],
}
FORGERS = {"nobody's key": (), "server": (HUB,), "site": ("site-1",), "server and site": (HUB, "site-1")}


@pytest.mark.slow
def test_a_site_finds_a_hundred_tamperings(signed, kits, tmp_path):
    """Whoever forges the log afterwards, with the keys that it has: a site with its own file finds it, and so does
    whoever has the log and the root alone, but for a log that was cut."""
    keys = {name: Certificate(kit, OF_SERVER if name == HUB else OF_CLIENT) for name, kit in kits.items()}
    log, own, tried = log_of(signed), [signed.heads["site-2"]], 0
    assert not log_verifier.check(signed.run, signed.root, own).problem
    for who, names in FORGERS.items():
        held = {name: keys[name] for name in names}
        for what, change in (CHANGES | CUT).items():
            entries = copy.deepcopy(log)
            found = change(entries)
            made = forged(found if what in CUT else entries, held)
            path = write_log(tmp_path / "audit.jsonl", made)
            verify(path)
            assert log_verifier.check(path, signed.root, own).problem, f"{what} by {who}"
            if what not in (*CUT, "all signatures dropped"):
                assert log_verifier.check(path, signed.root).problem, f"{what} by {who}, without a site's file"
            tried += 1
    assert tried == 112


def test_a_log_of_another_job_or_signed_by_no_server_is_found(signed, other, kits, tmp_path):
    own, log = [signed.heads["site-2"]], log_of(signed)
    assert "of another log" in log_verifier.check(other.run, signed.root, own).problem
    log[2]["head"] = log_of(other)[2]["head"] | {"certificate": log[2]["head"]["certificate"]}
    path = write_log(tmp_path / "audit.jsonl", forged(log, {}))
    assert "of another log" in log_verifier.check(path, signed.root).problem, "a replayed head"
    log, pem = log_of(signed), (kits["site-1"] / "client.crt").read_text()
    for entry in log:
        if "head" in entry:
            entry["head"]["certificate"] = pem
    write_log(path, forged(log, {HUB: Certificate(kits["site-1"], OF_CLIENT)}))
    assert "signed by site-1" in log_verifier.check(path, signed.root).problem, "a site in the server's place"
    assert log_verifier.check(signed.run, kits["site-1"] / "client.crt").problem, "another root"


@pytest.mark.parametrize("name", ["report.json", "report.html", "config.json", "model.safetensors"])
def test_a_changed_file_beside_the_log_is_found(signed, tmp_path, name):
    run = shutil.copytree(signed.run, tmp_path / "run")
    if name == "model.safetensors":
        model = read_tensors(run / name)
        save_tensors(run / name, {key: value * 1.01 for key, value in model.items()})
    else:
        (run / name).write_bytes((run / name).read_bytes().replace(b"e", b"E", 1))
    assert log_verifier.check(run, signed.root).problem == f"{name}: is not the one that the log names"


def test_an_evaluation_that_is_rewritten_with_its_report_is_found(signed, tmp_path):
    """The log and the report hang together again, and no signature is under them."""
    run = shutil.copytree(signed.run, tmp_path / "run")
    entries = log_of(signed)[:6]
    put(4, "sites", "site-3", "test", "auc", value=0.99)(entries)
    write_log(run / "audit.jsonl", forged(entries, {}))
    write_report(run)
    verify_run(run)
    found = log_verifier.check(run, signed.root)
    assert found.remarks == ["nobody vouches for entry 4 (evaluation), 5 (finish), 6 (report)"]
    assert log_verifier.check(run, signed.root, [signed.heads["site-1"]]).problem


def test_whatever_of_an_evaluation_a_server_rewrites_while_the_run_goes_on_is_found(kits, tmp_path, monkeypatch):
    """Then the server has signed it, and the site's own file alone tells: each site's evaluation in another way."""
    kept = loop.inspect_evaluation
    changes = [
        lambda found: found["intervals"]["auc"].update(low=0.0),
        lambda found: found["trivial"]["test"].update(loss=9.0),
        lambda found: (found["clinical"].update(n=1.0), found["val"].pop("auc")),
    ]

    def rewritten(*answers):
        found, refused = kept(*answers)
        for site, change in zip(sorted(found), changes):
            change(found[site])
        return found, refused

    monkeypatch.setattr(loop, "inspect_evaluation", rewritten)
    made = federation(tmp_path, kits)
    for site, heads in made.heads.items():
        problem = log_verifier.check(made.run, made.root, [heads]).problem
        assert problem.endswith(f"another evaluation of {site} than it sent"), problem


class Told(list):
    """Entries that lie in memory."""

    brief = property(list)


@pytest.mark.parametrize(
    "rounds, told", [((), "evaluation"), ((3,), "updates 3, evaluation"), ((1, 2, 4), "updates 1 to 2, 4, evaluation")]
)
def test_what_a_site_vouches_for_is_named(rounds, told):
    def entry(seq, event, round):
        kind = {"round": "accepted", "evaluation": "sites"}[event]
        one = {"task": event, "round": round, "update": NOBODY}
        return {
            "seq": seq,
            "event": event,
            "round": round,
            kind: ["a"],
            "head": {"seq": seq - 1, "hash": ""},
            "signed": {"a": one},
        }

    entries = [{"seq": 0, "event": "start"}, *(entry(k, "round", n) for k, n in enumerate(rounds, 1))]
    found, nothing = log_verifier.Verified(), SimpleNamespace(check_head=lambda *_: None, check_answer=lambda *_: None)
    log = Told([*entries, entry(len(entries), "evaluation", 4)])
    log_verifier._check_signatures(log, nothing, found, signed=True)
    assert found.vouched["site a"].startswith(f"its own: {told}; it has seen")


def test_a_site_that_changes_its_own_file_is_found(signed, other, kits, tmp_path):
    lines = [json.loads(line) for line in signed.heads["site-2"].read_text().splitlines()]
    own = next(number for number, line in enumerate(lines) if "told" in line)
    foreign = json.loads(signed.heads["site-1"].read_text().splitlines()[own])
    changes = {
        "an update dropped": lambda found: found.pop(own),
        "other numbers": lambda found: found[own]["told"]["metrics"].update(auc=0.99),
        "another update": lambda found: found[own]["signed"].update(update=NOBODY),
        "another's line": lambda found: found.__setitem__(own, foreign),
        "another head": lambda found: found[0]["head"].update(hash=NOBODY),
        "another place": lambda found: found[0]["head"].update(seq=3),
    }
    for what, change in changes.items():
        found = copy.deepcopy(lines)
        change(found)
        path = tmp_path / "site-2.heads.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in found))
        assert log_verifier.check(signed.run, signed.root, [path]).problem, what


def test_a_log_told_twice_is_found_where_two_sites_compare(signed, other):
    """The server shows two sites one log and the third another, in which it says that the third did not answer."""
    shown = [other.heads["site-1"], other.heads["site-2"]]
    found = log_verifier.check(other.run, other.root, shown)
    assert not found.problem, "nothing in this log says that there is another"
    assert "of another log" in log_verifier.check(other.run, other.root, [*shown, signed.heads["site-3"]]).problem


def test_an_answer_without_the_sites_signature_is_left_out(other):
    entries = log_of(other)
    for entry in entries[1:4]:
        assert UNSIGNED in entry["rejected"]["site-3"]["detail"]
        assert set(entry["signed"]) == set(entry["accepted"]) == {"site-1", "site-2"}
    found = log_verifier.check(other.run, other.root, other.heads.values())
    assert not found.problem and set(found.vouched) == {f"server {HUB}", "site site-1", "site site-2"}


def test_a_site_takes_no_head_that_the_server_has_not_signed(signed, kits, tmp_path):
    """Before it works, and it writes nothing of it."""
    heads = Heads(tmp_path / "kept", "site-2", Certificate(kits["site-2"], OF_CLIENT))
    head = {"log": NOBODY, "seq": 0, "hash": NOBODY}
    for signer in (Certificate(kits["site-1"], OF_CLIENT), None):
        proof = signer.sign(head_bytes(head)) if signer else {}
        with pytest.raises(DataError, match="not signed by this federation's server"):
            heads.receive(Instruction("train", Round(1, 3), {}, log=head | proof))
    assert not (tmp_path / "kept").exists()


def test_what_nobody_signed_is_said(signed, tmp_path):
    """An entry after the last head; and a run without certificates, as in the simulator."""
    entries = log_of(signed)
    made = forged([*entries, {"event": "after", "time": entries[-1]["time"]}], {})
    found = log_verifier.check(write_log(tmp_path / "audit.jsonl", made), signed.root)
    assert not found.problem and found.remarks == ["nobody vouches for entry 8 (after)"]
    assert found.vouched[f"server {HUB}"] == "entries 0 to 6 (rounds to 3, evaluation, finish, report)"


def test_the_verifier_runs_alone(signed):
    """At most 250 lines, without torch and without FLARE."""
    assert len(Path(log_verifier.__file__).read_text().splitlines()) <= 250
    heads = [part for path in signed.heads.values() for part in ("--heads", path)]
    code = "import sys; from fairflare.privacy.log_verifier import main; code = main(); "
    code += "assert not {'torch', 'nvflare', 'numpy'} & sys.modules.keys(); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", code, signed.run, "--root", signed.root, *heads], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4 and "site site-3 vouches for its own: update" in done.stdout


def test_the_command_says_who_vouches(signed, other, capsys):
    for heads, code, said in (
        ("signed", 0, f"server {HUB} vouches for entries 0 to 6"),
        ("other", 2, "of another log"),
    ):
        kept = {"signed": signed, "other": other}[heads].heads["site-2"]
        with pytest.raises(SystemExit) as stop:
            main(["verify", str(signed.run), "--root", str(signed.root), "--heads", str(kept)])
        streams = capsys.readouterr()
        assert stop.value.code == code and said in streams.out + streams.err


def test_a_line_that_a_kill_has_cut_short_spoils_no_file(tmp_path, kits):
    file = tmp_path / "site-1.heads.jsonl"
    for seq in range(3):
        Heads(file, "site-1", Certificate(kits["site-1"], OF_CLIENT))._append({"head": {"seq": seq}})
        with open(file, "a") as torn:
            torn.write('{"head": {"se')
    assert [json.loads(line)["head"]["seq"] for line in file.read_text().splitlines()[:-1]] == [0, 1, 2]


class Says:
    """A transport whose site signs what ``changed`` makes of its proof."""

    def __init__(self, kit, changed):
        self.site, self.changed = Certificate(kit, OF_CLIENT), changed

    def sites(self):
        return ["site-1"]

    def exchange(self, instructions):
        for site, one in instructions.items():
            answer = Answer(site, one.round.number, n_examples=40, metrics={"train_loss": 0.5})
            numbers, proof = self.changed(one.round.number, numbers_hash(schema.said(answer)))
            signed = self.site.sign(answer_bytes(site, one.task, one.round.number, one.log["hash"], "", numbers))
            yield dataclasses.replace(answer, signed={"numbers": numbers, **signed, **proof(signed)})


PROOFS = {
    "its own": (lambda round, numbers: (numbers, lambda signed: {}), 20),
    "numbers of another answer": (lambda round, numbers: ("0" * 64, lambda signed: {}), 0),
    "numbers that are a long text": (lambda round, numbers: ("0" * (1 << 20), lambda signed: {}), 0),
    "a signature with other characters": (
        lambda round, numbers: (numbers, lambda signed: {"signature": signed["signature"] + "!"}),
        0,
    ),
    "a certificate within a long text": (
        lambda round, numbers: (numbers, lambda signed: {"certificate": signed["certificate"] + "x" * (1 << 20)}),
        0,
    ),
    "a new text of its certificate in each answer": (
        lambda round, numbers: (numbers, lambda signed: {"certificate": signed["certificate"] + "\n" * round}),
        MOST_CERTIFICATES,
    ),
}


@each("proof, most", [*PROOFS.values()], ids=list(PROOFS))
def test_what_a_site_signs_is_its_answer_and_no_more(proof, most, kits):
    head = {"log": "0" * 64, "seq": 0, "hash": "1" * 64}
    server = Countersigned(Says(kits["site-1"], proof), Certificate(kits[HUB], OF_SERVER), lambda: head)
    answers = [next(server.exchange({"site-1": Instruction("train", Round(round, 20), {})})) for round in range(1, 21)]
    assert sum(answer.error is None for answer in answers) == most
    assert all(answer.error in (None, UNSIGNED) for answer in answers)
    assert len(str(server.taken())) < 100_000
