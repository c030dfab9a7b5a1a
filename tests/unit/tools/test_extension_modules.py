"""The check of the image's extension modules imports all of them and names each that is broken."""

import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from tests.architecture.sources import ROOT
from tools.extension_modules import import_all, list_extension_modules

PROGRAM = ROOT / "tools" / "extension_modules.py"
SUFFIX = EXTENSION_SUFFIXES[0]
PACKAGES = Path(sysconfig.get_path("platlib"))


def an_environment(folder: Path) -> tuple[Path, Path]:
    """An empty virtual environment: its Python, and its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return folder / "bin" / "python", packages


def check(python: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, PROGRAM], capture_output=True, text=True, check=False)


def test_modules_are_named_by_package_and_file(tmp_path: Path):
    (tmp_path / "yaml").mkdir()
    for name in (f"_cffi_backend{SUFFIX}", f"yaml/_yaml{SUFFIX}", "yaml/loader.py", "yaml/libyaml.so.2"):
        (tmp_path / name).touch()
    assert list_extension_modules(tmp_path) == ["_cffi_backend", "yaml._yaml"]


def test_modules_of_this_environment_are_imported():
    names = ["msgspec._core", "uvloop.loop"]
    assert set(names) <= set(list_extension_modules(PACKAGES))
    assert not import_all(names)


def test_a_valid_module_passes_and_a_broken_one_fails_by_name(tmp_path: Path):
    python, packages = an_environment(tmp_path / "app")
    shutil.copytree(PACKAGES / "yaml", packages / "yaml")
    done = check(python)
    assert (done.returncode, done.stdout) == (0, "imported 1 extension modules\n")
    (packages / f"broken{SUFFIX}").write_bytes(b"\0" * 4096)
    done = check(python)
    assert done.returncode == 1
    assert "\nbroken: " in done.stderr
    assert "yaml" not in done.stderr.partition("broken: ")[0]


def test_an_environment_without_extension_modules_fails(tmp_path: Path):
    python, packages = an_environment(tmp_path / "app")
    done = check(python)
    assert done.returncode == 1
    assert done.stderr == f"no extension module under {packages}\n"
