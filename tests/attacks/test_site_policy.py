# SPDX-License-Identifier: Apache-2.0
"""A site's veto: FLARE asks ``SitePolicy`` about every job, which refuses what it cannot vouch for and says why."""

import copy
import json
import re
import shutil
import sys

import pytest

from cases import each
from fairflare.core import manifest
from fairflare.core.errors import UserError
from fairflare.engine.setup.config import make_config
from fairflare.flare.recipe import FairRecipe
from fairflare.flare.site_policy import EGRESS, EXECUTOR, Policy, SitePolicy, read_policy

NETS = "monai.networks.nets"
REFUSED = "refused by this site's policy: "
OWN = {"site_names": "a,b", "labels": "2", "channels": 1, "size": 32}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What arrives at a site: name -> the app of a job without code."""
    folder = tmp_path_factory.mktemp("exported")
    secret = {"secure_sum": "masks"}
    runs = {
        "table": make_config("fedufo", "support2"),
        "images": make_config("fedavg", "classification", values=OWN),
        "sums": make_config("fedism-plus", "support2:dirichlet", sites=3, values=secret),
    }
    private = {**secret, "secure_sum": "none", "trainer": "dp-sgd", "epsilon": 3}
    runs["private"] = make_config("fedavg", "support2:dirichlet", sites=3, values=private)
    for name, config in runs.items():
        FairRecipe(config, name=name, simulation=False, preinstalled=True).export(str(folder))
    return {name: folder / name / "app_sites" for name in runs}


@pytest.fixture
def site(exported, tmp_path):
    return Site(exported, tmp_path)


class Site:
    """A site's workspace, and what it answers to a job that somebody changed."""

    def __init__(self, exported, folder):
        self.exported, self.root = exported, folder
        (self.root / "local" / "custom").mkdir(parents=True)

    def policy(self, **rules):
        (self.root / "local" / "fairflare_policy.yaml").write_text(json.dumps(rules))

    def app(self, name="table"):
        app = self.root / "job-id" / "app_hospital-a"
        shutil.rmtree(app, ignore_errors=True)
        shutil.copytree(self.exported[name], app)
        return app

    def answer(self, change=lambda content: None, name="table", text=None):
        """The reason of a refusal; empty: the job may run."""
        app = self.app(name)
        file = app / "config" / "config_fed_client.json"
        content = json.loads(file.read_text())
        file.write_text(text if text is not None else json.dumps(change(content) or content))
        return self.ask(app)

    def ask(self, app, **arguments):
        reason, facts = SitePolicy(**arguments).validate(str(app))
        assert facts == {} and "\n" not in reason and len(reason) < 500 and str(self.root) not in reason
        assert not reason or reason.startswith(REFUSED)
        return reason


def in_config(**values):
    """A change of the run's configuration."""

    def change(content):
        content["executors"][0]["executor"]["args"]["config"].update(copy.deepcopy(values))

    return change


def in_options(**values):
    def change(content):
        options = content["executors"][0]["executor"]["args"]["config"]["options"]
        return in_config(options={**options, **values})(content)

    return change


@pytest.mark.parametrize("name", ["table", "images", "sums"])
def test_an_exported_job_is_accepted_as_it_is(site, name):
    assert site.answer(name=name) == ""


def test_a_sites_privacy_budget_takes_private_jobs_alone_and_is_spent_over_all_of_them(site):
    site.policy(epsilon=5, delta=1e-4)
    assert "trainer: expected dp-sgd, got" in site.answer()
    assert site.answer(name="private") == ""
    state = site.root / "fairflare_state"
    state.mkdir()
    (state / "hospital-a.privacy.json").write_text(json.dumps({"runs": {"a": {"epsilon": 2.5, "delta": 1e-5}}}))
    assert "at most 2.5, which is left of this site's budget, got 3" in site.answer(name="private")
    site.policy(epsilon=5.5, delta=1.9e-5)
    assert "trainer.delta: expected at most 9e-06" in site.answer(name="private")
    site.policy(epsilon=5.5)
    assert site.answer(name="private") == ""
    seeded = lambda content: in_config(settings=nested_settings(content, "draws", "seed"))(content)  # noqa: E731
    assert "trainer.draws: expected system, got seed" in site.answer(seeded, name="private")


def nested_settings(content, name, value):
    """The settings of a job's configuration with one of its trainer's changed."""
    settings = copy.deepcopy(content["executors"][0]["executor"]["args"]["config"]["settings"])
    settings["trainer"][name] = value
    return settings


def test_a_job_that_brings_its_code_is_accepted_unless_the_site_says_otherwise(site):
    app = site.app()
    (app / "custom").mkdir()
    (app / "custom" / "own_net.py").write_text("raise SystemExit('the job was imported')\n")
    assert "MANIFEST.json: expected one beside custom/" in site.ask(app)
    list_code(app)
    assert site.ask(app) == ""
    site.policy(allow_code=False)
    assert "brings code (app/custom)" in site.ask(app)


@each(
    "name",
    [
        "sitecustomize.py",
        "json.py",
        "torch/__init__.py",
        "nvflare/net.py",
        "hashlib.pyc",
        "ssl.abi3.so",
        "yaml.py",
        "PIL/Image.py",
    ],
)
def test_code_in_the_place_of_a_library_is_refused(site, name):
    """It would run before the job's own modules do, or as part of FLARE, whatever else a reviewer has read."""
    app = site.app()
    (app / "custom" / name).parent.mkdir(parents=True)
    (app / "custom" / name).write_text("raise SystemExit('the job was imported')\n")
    list_code(app)
    top = name.partition("/")[0]
    assert f"custom: expected no module in the place of a library's, got '{top}'" in site.ask(app)


def list_code(app):
    """Write the manifest of the code that is there."""
    entries = {name: manifest.entry_of(path) for name, path in manifest.code_of(app)}
    package = {"version": "", "sha256": ""}
    content = {"format": 1, "read_by": "site", "entry_point": EXECUTOR, "components": [], "package": package}
    (app / manifest.NAME).write_text(json.dumps({**content, "files": entries, "left_out": {}}))


def model(name, **args):
    return json.dumps({"class_path": name, "args": args})


@each(
    "chosen, text",
    [
        (
            model(f"{NETS}.densenet.load_state_dict_from_url", url="file:///tmp/x"),
            "model: expected a network that monai",
        ),
        (model("fairflare.cli.main.main"), "which is this package's"),
        (model("os.system"), "model: expected a name in the site's local/custom or in code that the job brings"),
        (model("my_net.Net"), "model: expected a name in the site's local/custom"),
        (model(f"{NETS}.DenseNet121", spatial_dims=2, in_channels=1, out_channels=2, pretrained=True), "got True"),
        (model(f"{NETS}.UNet", channels=[10**9]), "channels: expected"),
        ('{"class_path": "a.b", "args": {"x": "{JOB_ID}"}}', "local/custom"),
    ],
)
def test_a_network_that_a_job_may_not_name(site, chosen, text):
    assert text in site.answer(in_options(model=chosen), "images")


def test_networks_that_a_job_may_name(site, monkeypatch):
    monkeypatch.delitem(sys.modules, "my_net", raising=False)  # tests of own code before this one import theirs
    densenet = model(f"{NETS}.densenet.DenseNet121", spatial_dims=2, in_channels=1, out_channels=2)
    assert site.answer(in_options(model=densenet), "images") == ""
    own = in_options(model=model("my_net.Net"))
    assert "model: expected a name in the site's local/custom" in site.answer(own, "images")
    (site.root / "local" / "custom" / "my_net").mkdir()
    (site.root / "local" / "custom" / "my_net" / "__init__.py").write_text("raise SystemExit('was imported')\n")
    assert site.answer(own, "images") == ""
    site.policy(names=["my_net.Other"])
    assert "model: expected a name that this site's policy lists, got 'my_net.Net'" in site.answer(own, "images")
    assert "my_net" not in sys.modules


@each(
    "change, text",
    [
        (in_options(datalists="/hospital/data"), "options: datalists: expected none"),
        (in_options(unknown=1), "unknown key 'unknown'"),
        (in_options(labels="{WORKSPACE}"), "expected no variables, got '{WORKSPACE}'"),
        (in_config(federation="../../x"), "federation: expected the id of an earlier job"),
        (in_config(method="os"), "unknown method 'os'"),
        (in_config(trainer="os.system"), "trainer: expected a name"),
        (in_config(task="../x"), "task: expected a name"),
        (in_config(preset="none"), "unknown preset"),
        (in_config(group_by="sex"), "sex"),
        (in_config(secure_sum="rot13"), "secure_sum: expected one of"),
        (in_config(code={"os.path": "0" * 64}), "code: expected names of modules"),
        (in_config(path="fairflare.cli.main.main"), "keys among"),
        (in_config(class_attributes={}), "keys among"),
        (in_config(min_count="10"), "min_count"),
    ],
)
def test_a_configuration_that_is_no_run(site, change, text):
    assert text in site.answer(change, "images")


def changed(path, value):
    """A change of one place of the file; ``value`` None takes it out."""

    def change(content):
        *above, last = path
        for key in above:
            content = content[key]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return change


STREAMER = {
    "id": "x",
    "path": "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
    "args": {"log_file_name": "app_hospital-a/fairflare_errors.txt"},
}
EXE, FIRST = ("executors", 0, "executor"), ("task_result_filters", 0)
SVT = "nvflare.app_common.filters.svt_privacy.SVTPrivacy"
OTHER = {"path": SVT, "args": {}}


@each(
    "change, text",
    [
        (changed(("executors",), None), "executors: expected a list, got None"),
        (changed(("executors",), []), "executors: expected a list, got []"),
        (lambda c: c["executors"].append(c["executors"][0]), "executors: expected one"),
        (changed((*EXE, "path"), "nvflare.app_common.np.np_trainer.NPTrainer"), f"executor: expected {EXECUTOR}"),
        (changed((*EXE, "path"), "{EXECUTOR}"), "expected no variables"),
        (changed((*EXE, "name"), "FairExecutor"), "executor: expected id, path and args"),
        (changed((*EXE, "args", "class_attributes"), {"config": {}}), "executor: args: expected config alone"),
        (changed(("executors", 0, "tasks"), ["*"]), "executors: tasks: expected names of tasks"),
        (changed(("executors", 0, "tasks"), [1]), "executors: tasks: expected names of tasks"),
        (changed((*EXE, "disabled"), True), "executor: expected id, path and args"),
        (changed((*FIRST, "filters", -1, "disabled"), True), f"{EGRESS}: expected no arguments"),
        (changed((*FIRST, "direction"), "OUT"), f"expected one chain that ends with {EGRESS}, got 0"),
        (changed(("components",), [{"id": "x", "path": EXECUTOR, "args": {"config": {}}}]), "configuration, got 'anot"),
        (changed(("components",), [{"path": SVT, "class_path": "os.system"}]), "classes that this site allows"),
        (changed(("components",), [{"class_path": SVT, "args": {}}]), "components: expected path"),
        (changed(("task_result_filters",), None), "task_result_filters: expected a list, got None"),
        (changed((*FIRST, "direction"), "in"), f"expected one chain that ends with {EGRESS}, got 0"),
        (lambda c: [chain["tasks"].remove("train") for chain in c["task_result_filters"] if "train" in chain["tasks"]],
         f"task_result_filters: train: expected one chain that ends with {EGRESS}, got 0"),
        (lambda c: c["task_result_filters"].append(c["task_result_filters"][0]), "got 2"),
        (lambda c: c["task_result_filters"][0]["filters"].append(OTHER), f"last: expected {EGRESS}"),
        (changed((*FIRST, "filters", 0, "args", "config"), {}), f"{EGRESS}: expected no arguments"),
        (changed((*FIRST, "filters"), []), "filters: expected a list"),
        (changed(("components",), [{"id": "x", "path": "fairflare.cli.main.main", "args": {}}]), "that this site"),
        (changed(("components",), [{"id": "x", "name": "NPTrainer", "args": {}}]), "classes that this site allows"),
        (changed(("components",), [{"id": "x", "path": "os.system", "args": {}}]), "got 'os.system'"),
        (changed(("components",), [STREAMER]), "JobLogStreamer"),
        (changed(("more",), {"deep": [{"class_path": "os.system"}]}), "got 'os.system'"),
        (changed(("task_data_filters",), [{"tasks": ["train"], "filters": [{"path": "os.system"}]}]), "'os.system'"),
        (changed(("@x",), {}), "expected plain names as keys, got '@x'"),
        (changed(('"class_path"',), "x"), "expected plain names as keys"),
    ],
)  # fmt: skip
def test_a_job_that_is_put_together_otherwise(site, change, text):
    assert text in site.answer(lambda content: change(content) and None)


@each(
    "text, reason",
    [
        ("", "cannot be read (JSONDecodeError)"),
        ("[" * 200_000, "cannot be read (RecursionError)"),
        ("[]", "expected an object"),
        ('{"executors": [], "executors": []}', "expected each key once"),
        ('{"x": NaN}', "expected finite numbers, got NaN"),
        (" " * 2**20 + "{}", "expected at most 1048576 bytes"),
        ("\udcff", "cannot be read (UnicodeDecodeError)"),
    ],
)
def test_a_file_that_is_no_configuration(site, text, reason):
    app = site.app()
    (app / "config" / "config_fed_client.json").write_text(text, errors="surrogateescape")
    assert reason in site.ask(app)


def test_one_configuration_is_what_flare_finds(site):
    for other in ("config_fed_client.conf", "config/config_fed_client.yml", "custom/config_fed_client.json"):
        app = site.app()
        (app / other).parent.mkdir(exist_ok=True)
        (app / other).write_text("{}")
        assert "expected one config_fed_client.json, in config/" in site.ask(app), other
    app = site.app()
    (app / "config" / "config_fed_client.json").rename(app / "config" / "real.json")
    assert "expected one config_fed_client.json" in site.ask(app)
    (app / "config" / "config_fed_client.json").symlink_to("real.json")
    assert "expected one config_fed_client.json" in site.ask(app)


def test_a_site_that_lists_thresholds_takes_none_that_follow_from_a_jobs_alpha():
    rules = Policy(thresholds=[0.5])
    for values, told in (({"loss": "sets"}, ""), ({"loss": "missed"}, "after.loss: expected sets")):
        config = make_config(
            "fedavg", "support2", values={"after": "conformal", **{f"after.{k}": v for k, v in values.items()}}
        )
        try:
            rules.check(config)
            assert not told
        except UserError as error:
            assert told and told in str(error)


@each("place", ["task_result_filters", "filters", "executors"])
def test_a_key_that_flare_follows_into_what_was_checked_is_refused(site, place):
    app = site.app()
    path = app / "config" / "config_fed_client.json"
    content = json.loads(path.read_text())
    other = {"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy", "args": {}}
    chain = content["task_result_filters"][0]
    {"task_result_filters": chain, "filters": chain["filters"][-1], "executors": content["executors"][0]}[place][
        "filters.#9"
    ] = other
    path.write_text(json.dumps(content))
    assert re.search("expected (the keys|plain names)", site.ask(app))


RULES = [
    ({"methods": ["fedavg"]}, "method: expected one of fedavg, got 'fedufo'"),
    ({"methods": []}, "method: expected one of"),
    ({"tasks": ["tabular"]}, "task: expected one of tabular, got 'support2'"),
    ({"max_rounds": 3}, "rounds: expected at most 3, got"),
    ({"min_count": 11}, "min_count: expected at least 11, got 10"),
    ({"secure_sum": True}, "secure_sum: expected masks or ckks, got none"),
    ({"allow_kode": False}, "unknown key 'allow_kode'; did you mean allow_code"),
    ({"allow_code": "no"}, "allow_code: expected true or false"),
    ({"max_rounds": True}, "max_rounds: expected a whole number"),
    ({"methods": "fedavg"}, "methods: expected a list of names"),
    ({"methods": ["fedavg", 3]}, "methods: expected a list of names"),
    ({"methods": None}, "methods: expected a value, or no such line"),
    ({"thresholds": [0.3, 0.4]}, "threshold: expected one of 0.3, 0.4, got 0.5"),
    ({"thresholds": []}, "threshold: expected one of none, got 0.5"),
    ({"thresholds": [0.5]}, ""),
    ({"thresholds": [1.5]}, "thresholds: expected a list of numbers between 0 and 1"),
    ({"thresholds": 0.5}, "thresholds: expected a list of numbers between 0 and 1"),
    ({"min_count": 10, "methods": ["fedufo"], "tasks": ["support2"], "max_rounds": 10**6, "allow_code": False}, ""),
]


@each("rules, text", RULES, ids=lambda v: json.dumps(v) if isinstance(v, dict) else None)
def test_the_sites_own_rules(site, rules, text):
    site.policy(**rules)
    answer = site.answer()
    assert text in answer and bool(text) == bool(answer)


@pytest.mark.parametrize(
    "steps, text",
    [
        ([], "after: expected one of none, got 'recalibrate'"),
        (["conformal"], "after: expected one of none, conformal, got 'recalibrate'"),
        (["conformal", "recalibrate"], ""),
    ],
)
def test_a_site_says_which_steps_after_the_last_round_it_takes_part_in(site, steps, text):
    site.policy(after=steps)
    config = make_config("fedufo", "support2", values={"after": "recalibrate"})
    content = config.to_json()
    answer = site.answer(in_config(after=content["after"], after_settings=content["after_settings"]))
    assert text in answer and bool(text) == bool(answer)
    assert site.answer() == ""


@pytest.mark.parametrize("steps, text", [([], "fold: expected none"), (["join"], ""), (None, "")])
def test_a_site_says_whether_it_is_tested_fold_by_fold(site, steps, text):
    site.policy(**({} if steps is None else {"after": steps}))
    answer = site.answer(in_config(fold="0/5/0"))
    assert text in answer and bool(text) == bool(answer)
    assert "fold" in site.answer(in_config(fold="0/99/9999")), "small sets that jobs deal anew tell of single cases"


def test_a_policy_that_cannot_be_read_refuses_everything(site):
    file = site.root / "local" / "fairflare_policy.yaml"
    for text in ("methods: [fedufo", "- fedufo", "", "{" * 1000, "\x00"):
        file.write_text(text)
        assert "this site's policy file" in site.answer(), text[:20]
    file.unlink()
    assert "this site's policy file cannot be read (FileNotFoundError)" in site.ask(site.app(), policy="rules.yaml")
    (site.root / "local" / "fairflare_policy.yaml").symlink_to("gone.yaml")
    assert "this site's policy file cannot be read" in site.answer(), "a link to nothing is not no policy"
    shutil.rmtree(site.root / "local")
    assert "this site's folder local/ was not found" in site.answer()


def test_a_jobs_own_privacy_filter_comes_before_the_egress(site):
    assert site.answer(lambda content: content["task_result_filters"][0]["filters"].insert(0, OTHER)) == ""


def test_secure_sums_keep_to_such_a_rule_and_more_classes_can_be_allowed(site):
    site.policy(secure_sum=True)
    assert site.answer(name="sums") == ""
    component = changed(("components",), [{"id": "x", "path": "ours.Widget", "args": {}}])
    assert "got 'ours.Widget'" in site.answer(component, "sums")
    site.policy(secure_sum=True, classes=["ours.Widget"])
    assert site.answer(component, "sums") == ""


def test_no_file_is_the_open_policy_and_two_are_none(tmp_path):
    assert read_policy(tmp_path) == Policy()
    for name in ("fairflare_policy.yaml", "fairflare_policy.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="expected one file"):
        read_policy(tmp_path)
