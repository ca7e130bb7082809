"""What joulewise is built from: pinned by hash, named with its licence, and none of it drifts unnoticed."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DAEMON = ROOT / "packaging" / "daemon"
NOTICES = ROOT / "THIRD_PARTY_NOTICES.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = "joulewise (pyproject.toml)"
SOURCES = {"requirements.lock": OURS, "build.lock": "-r packaging/daemon/build.in"}


def locked(name):
    """Package → version, hashes, and what asks for it, of a lock file; fails for a line that is anything else."""
    packages, package = {}, None
    for line in (DAEMON / name).read_text().splitlines():
        if pinned := re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+) \\", line):
            package = packages.setdefault(canonicalize_name(pinned[1]), {"version": pinned[2], "hashes": [], "via": []})
        elif digest := re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?", line):
            package["hashes"].append(digest[1])
        elif line == "    # via":
            continue
        elif via := re.fullmatch(r"    #(?: via)? +(.+)", line):
            package["via"].append(via[1])
        else:
            pytest.fail(f"{name} has a line that is none of a lock file: {line!r}")
    return packages


def asked_for(name):
    """What the lock file is made from."""
    if name == "requirements.lock":
        return [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    lines = (DAEMON / "build.in").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", SOURCES)
def test_a_lock_covers_exactly_what_is_asked_for_with_hashes_for_every_package(name):
    packages, asked = locked(name), asked_for(name)
    assert {package for package, its in packages.items() if SOURCES[name] in its["via"]} == {
        canonicalize_name(each.name) for each in asked
    }
    for each in asked:
        assert packages[canonicalize_name(each.name)]["version"] in each.specifier, f"'make lock' for {each}"
    for package, its in packages.items():
        assert its["hashes"], package
        assert len(its["hashes"]) == len(set(its["hashes"]))
        # Nothing but what is asked for, and what that asks for.
        assert its["via"], package
        assert all(via == SOURCES[name] or canonicalize_name(via) in packages for via in its["via"]), package


def test_what_differs_between_platforms_is_locked_for_all_of_them():
    """One wheel of numpy a platform and Python; pure packages have a wheel and their sources."""
    assert len(locked("requirements.lock")["numpy"]["hashes"]) > 20


def test_the_build_lock_has_the_build_system():
    named = {canonicalize_name(each.name): each.specifier for each in asked_for("build.lock")}
    for line in PROJECT["build-system"]["requires"]:
        wanted = Requirement(line)
        assert named[canonicalize_name(wanted.name)] == wanted.specifier


@pytest.mark.parametrize(
    "path", [*sorted(DAEMON.iterdir()), ROOT / "packaging" / "vendored.json"], ids=lambda p: p.name
)
def test_no_address_of_a_registry_is_in_what_we_ship(path):
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host", path.read_text())


# What is vendored.


def vendored():
    return json.loads((ROOT / "packaging" / "vendored.json").read_text())["vendored"]


def test_vendored_files_are_those_of_upstream_and_none_is_unnamed():
    named = set()
    for part in vendored():
        for file, its in part["files"].items():
            path = ROOT / part["folder"] / file
            assert hashlib.sha256(path.read_bytes()).hexdigest() == its["sha256"], f"{path} is not upstream's"
            named.add(path)
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", part["integrity"])
    assert {path for path in (ROOT / "src").rglob("vendor/*") if path.is_file()} == named


def test_nobody_else_s_copyright_stands_outside_the_vendored_files():
    """Whoever copies a file in later is told where to name it."""
    claims = re.compile(r"copyright \(c\)|@license|SPDX-License-Identifier", re.IGNORECASE)
    named = {ROOT / part["folder"] / file for part in vendored() for file in part["files"]}
    kinds = {".py", ".js", ".css", ".c", ".h", ".cpp", ".html", ".svg", ".toml", ".txt"}
    sources = {path for path in (ROOT / "src").rglob("*") if path.suffix in kinds and path.is_file()}
    assert [path for path in sources - named if claims.search(path.read_text("utf-8"))] == []


def test_vendored_files_are_those_of_the_registry_s_package(tmp_path):
    """The whole way: the package's integrity as we wrote it down, and its files byte by byte."""
    npm = shutil.which("npm") or pytest.skip("npm is not installed")
    for part in vendored():
        packed = subprocess.run(
            [npm, "pack", part["package"].removeprefix("npm: "), "--silent"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        if packed.returncode:
            pytest.skip(f"npm's registry is not reached: {packed.stderr.strip()[-200:]}")
        archive = tmp_path / packed.stdout.split()[-1]
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert f"sha512-{digest}" == part["integrity"]
        with tarfile.open(archive) as package:
            for file, its in part["files"].items():
                theirs = package.extractfile(f"package/{its['upstream']}").read()
                assert theirs == (ROOT / part["folder"] / file).read_bytes()


# Notices.


def licence_of(name):
    """As its own metadata say; None where they do not, or it is not installed here."""
    try:
        its = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    classified = [line.split(" :: ") for line in its.get_all("Classifier") or () if line.startswith("License ::")]
    named = ", ".join(parts[-1] for parts in classified if parts[-1] not in ("DFSG approved", "OSI Approved"))
    short = (its.get("License") or "").strip().partition("\n")[0]
    return its.get("License-Expression") or named or short or None


def table():
    """The rows of the table of dependencies: what asks for it, its name, its licence as the notices say."""
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+?) \|$", NOTICES.read_text(), re.MULTILINE)
    return {(extra, canonicalize_name(name)): licence for extra, name, licence in rows}


def expected():
    """Which packages have a row: those of pyproject by extra, and what the locked environment takes besides."""
    extras = {"joulewise": PROJECT["project"]["dependencies"], **PROJECT["project"]["optional-dependencies"]}
    rows = {
        (extra, canonicalize_name(Requirement(line).name))
        for extra, lines in extras.items()
        for line in lines
        if Requirement(line).name != "joulewise"
    }
    direct = {name for extra, name in rows if extra == "joulewise"}
    return rows | {("joulewise", name) for name in locked("requirements.lock").keys() - direct}


def test_every_dependency_is_named_with_the_licence_that_its_metadata_state():
    rows = table()
    right = {row: licence_of(row[1]) or rows.get(row) for row in expected()}
    text = "\n".join(f"| `{extra}` | `{name}` | {licence} |" for (extra, name), licence in sorted(right.items()))
    assert rows == right, f"the table should be:\n{text}"


def test_the_notices_hold_the_licence_of_everything_that_is_vendored():
    text = NOTICES.read_text()
    for part in vendored():
        assert f"{part['name']} {part['version']}" in text
        assert (ROOT / part["folder"] / "LICENSE").read_text().strip() in text


# From the registry.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Our wheel, built with what the build lock pins."""
    folder = tmp_path_factory.mktemp("wheel")
    build = environment(folder / "build", "build.lock")
    environ = {**os.environ, "PATH": f"{build / 'bin'}:{os.environ['PATH']}"}
    command = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(ROOT)]
    built = subprocess.run([build / "bin" / "pip", *command], env=environ, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = folder.glob("*.whl")
    return made


def environment(folder, lock):
    """A fresh virtual environment with what a lock file pins and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [
        folder / "bin" / "pip",
        "install",
        "--require-hashes",
        "--disable-pip-version-check",
        "-q",
        "-r",
        DAEMON / lock,
    ]
    ran = subprocess.run(pip, capture_output=True, text=True)
    if ran.returncode and re.search(
        "NewConnectionError|ConnectTimeout|Temporary failure in name resolution|timed out", ran.stderr
    ):
        pytest.skip(f"the registry is not reached: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_wheel_has_our_licence_and_the_notices(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name: name for name in archive.namelist() if ".dist-info/licenses/" in name}
        assert set(names) == {"LICENSE", "THIRD_PARTY_NOTICES.md"}
        assert archive.read(names["THIRD_PARTY_NOTICES.md"]).decode() == NOTICES.read_text()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_daemon_s_environment_installs_from_its_hashes_and_is_complete(wheel, tmp_path):
    made = environment(tmp_path / "venv", "requirements.lock")
    pip, python = made / "bin" / "pip", made / "bin" / "python"
    subprocess.run([pip, "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    subprocess.run([pip, "check"], check=True, capture_output=True)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JOULEWISE_CONFIG": ""}
    for words in (["-m", "joulewise", "daemon", "--help"], ["-m", "joulewise.daemon", "--help"]):
        ran = subprocess.run([python, "-I", *words], env=environ, cwd="/", capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
    listed = subprocess.run([pip, "list", "--format=json"], check=True, capture_output=True, text=True).stdout
    installed = {canonicalize_name(each["name"]): each["version"] for each in json.loads(listed)}
    wanted = {name: its["version"] for name, its in locked("requirements.lock").items()}
    assert {name: installed.get(name) for name in wanted} == wanted
    assert installed.keys() - wanted.keys() <= {"joulewise", "pip", "setuptools"}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_package_that_is_not_the_one_that_was_pinned_is_refused(tmp_path):
    lock = (DAEMON / "requirements.lock").read_text()
    for digest in locked("requirements.lock")["mdurl"]["hashes"]:
        lock = lock.replace(digest, "0" * 64)
    changed = tmp_path / "changed.lock"
    changed.write_text(lock)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv" / "bin" / "pip", "download", "--require-hashes", "-q", "-d", tmp_path, "-r", changed]
    ran = subprocess.run(pip, capture_output=True, text=True)
    assert ran.returncode != 0
    if "HASHES" not in ran.stderr:
        pytest.skip(f"the registry is not reached: {ran.stderr.strip()[-200:]}")
    assert "mdurl" in ran.stderr
