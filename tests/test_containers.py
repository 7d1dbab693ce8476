"""The image, the compose file and the cluster's example name only what this project has.

No engine is needed: `.ci/image` carries out the Dockerfile's steps in clean roots.
"""

import re
import shlex
import subprocess
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
import yaml
from sqlalchemy import create_engine, make_url
from streamlit import config

from storage.engine import Database
from storage.sql.reader_role import describe_reader
from tests.test_guide import GUIDE, ROOT, parse

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
JOB = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```", (GUIDE / "sweeps.md").read_text(), re.M | re.S)[0])
CONTAINER = JOB["spec"]["template"]["spec"]["containers"][0]
OWN = ("app", "worker")


def steps(word: str) -> list[str]:
    joined = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [line.removeprefix(word).strip() for line in joined.splitlines() if line.startswith(f"{word} ")]


def variables() -> dict[str, str]:
    return dict(each.split("=", 1) for step in steps("ENV") for each in shlex.split(step))


def mounts() -> set[str]:
    return {place for step in steps("VOLUME") for place in yaml.safe_load(step)}


def commands() -> list[list[str]]:
    said = [COMPOSE["services"][name]["command"] for name in OWN]
    return [*(yaml.safe_load(step) for step in steps("CMD")), *said, CONTAINER["command"]]


def source_text() -> str:
    return "\n".join(file.read_text() for top in ("app", "storage", "emtc_core") for file in (ROOT / top).rglob("*.py"))


def test_the_image_is_built_from_what_the_wheel_needs_and_no_other_file_reaches_the_builder() -> None:
    copied = {place for step in steps("COPY") if "--from" not in step for place in step.split()[:-1]}
    assert [place for place in copied if not (ROOT / place).exists()] == []
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert copied == {*wheel, PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml"}
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_the_steps_are_shell_and_name_extras_and_modules_that_exist() -> None:
    for step in steps("RUN"):
        assert subprocess.run(["sh", "-nc", step], check=False).returncode == 0, step
    extras = {name for found in re.findall(r"whl\)\[([\w,]+)\]", DOCKERFILE) for name in found.split(",")}
    assert {"login", "postgres", "gpu"} <= extras <= {*PROJECT["project"]["optional-dependencies"]}
    modules = re.findall(r"python -m (app\S+)", DOCKERFILE)
    assert modules
    assert all(find_spec(name) for name in modules)


def test_who_runs_is_nobody_special_and_owns_what_is_written() -> None:
    uid = re.search(r"useradd .*--uid (\d+) (\w+)", DOCKERFILE)
    assert uid
    assert steps("USER") == [uid[2]]
    assert DOCKERFILE.rindex("\nFROM ") < DOCKERFILE.index("\nUSER "), "the last stage has the user"
    made = re.search(rf"install --directory --owner={uid[2]} .*?((?: /\w+)+)", DOCKERFILE)
    assert made
    assert {*made[1].split()} == mounts()
    security = JOB["spec"]["template"]["spec"]["securityContext"]
    assert {security["runAsUser"], security["fsGroup"]} == {int(uid[1])}


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_a_command_of_a_container_exists(command: list[str]) -> None:
    parse(shlex.join(command))


def test_every_variable_is_one_that_something_reads() -> None:
    settings = [COMPOSE["services"][name]["environment"] for name in OWN]
    said = {*variables(), *(name for each in settings for name in each), *(row["name"] for row in CONTAINER["env"])}
    text, options = source_text(), {option.env_var for option in config._config_options_template.values()}
    assert said >= {"EMTC_DB", "EMTC_FILES", "EMTC_USERS"}
    assert [name for name in said if name not in options and f'"{name}"' not in text] == []


def test_database_and_files_lie_where_something_is_mounted() -> None:
    known = variables()
    assert known["EMTC_DB"].removeprefix("sqlite:///").rpartition("/")[0] in mounts()
    assert known["EMTC_FILES"] in mounts()
    named = {*COMPOSE["volumes"]}
    for name in OWN:
        service = COMPOSE["services"][name]
        used = dict(each.split(":") for each in service["volumes"])
        assert {*used} <= named
        assert service["environment"]["EMTC_FILES"] in {*used.values()} & mounts()
    kept = {row["mountPath"] for row in CONTAINER["volumeMounts"]}
    assert {row["value"] for row in CONTAINER["env"] if row["name"] == "EMTC_FILES"} == kept <= mounts()


def test_all_speak_of_one_port() -> None:
    service = COMPOSE["services"]["app"]
    told = [*steps("EXPOSE"), *service["ports"][0].split(":")[1:], *(each[each.index("--port") + 1] for each in
            commands() if "--port" in each), *re.findall(r"localhost:(\d+)", str(service["healthcheck"]))]  # fmt: skip
    assert {*told} == {"8501"}
    assert service["ports"][0].startswith("127.0.0.1:"), "a proxy with TLS stands before it"


def test_the_server_has_a_login_two_workers_and_a_database_that_is_waited_for() -> None:
    services: dict[str, Any] = COMPOSE["services"]
    app, worker = services["app"], services["worker"]
    (secret,) = app["secrets"]
    home = steps("WORKDIR")[-1]
    assert secret["target"] == f"{home}/.streamlit/secrets.toml"
    assert f"{Path.home()}/.streamlit/secrets.toml" in st.get_option("secrets.files")
    assert COMPOSE["secrets"][secret["source"]]["file"] == ".streamlit/secrets.toml"
    assert ":?" in app["environment"]["EMTC_USERS"], "without a list of users nothing starts"
    assert worker["scale"] == 2
    assert dict.fromkeys(OWN, app["depends_on"]["db"]["condition"]) == dict.fromkeys(OWN, "service_healthy")
    assert services["db"]["environment"]["POSTGRES_DB"] == app["environment"]["EMTC_DB"].rpartition("/")[2]


def test_the_database_of_the_compose_file_has_the_role_of_the_page_sql() -> None:
    services = COMPOSE["services"]
    (config,) = services["db"]["configs"]
    assert config["target"].startswith("/docker-entrypoint-initdb.d/")
    address = services["app"]["environment"]["EMTC_DB"].replace("${EMTC_DB_PASSWORD:?choose a password}", "x")
    engine = create_engine(address)
    statements, url = describe_reader(Database(address, None, engine, None))
    password = make_url(url).password or ""
    expected = [f"{statement};" for statement in statements]
    setting = "${EMTC_READER_PASSWORD:?choose a password}"
    assert COMPOSE["configs"][config["source"]]["content"].replace(setting, password).splitlines() == expected
    assert services["app"]["environment"]["EMTC_DB_READER"].replace(setting, password) == url


def test_the_guide_names_the_image_and_the_variables_of_the_compose_file() -> None:
    text, sharing = (ROOT / "compose.yaml").read_text(), (GUIDE / "sharing.md").read_text()
    required = {*re.findall(r"\$\{(\w+)", text)}
    assert required == {*re.findall(r"^# +(EMTC_\w+) ", text, re.MULTILINE)}
    assert required <= {*re.findall(r"`(\w+)`", sharing)}
    (image,) = {COMPOSE["services"][name]["image"] for name in OWN}
    assert CONTAINER["image"] == image
    assert f"docker build -t {image} ." in DOCKERFILE
    assert f"docker build -t {image} ." in sharing
