"""What a job's requirements.txt asks for: an init container installs what the image lacks. Pure.

pip runs for a virtual environment that sees the packages of the image's own Python. So it installs only what is not
there, never changes what is there, and a second torch is not fetched. The trainer finds the result on PYTHONPATH.
"""

from __future__ import annotations

from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.api.podtemplate import INSTALLER_FIELDS

SITE: Final = f"{names.PACKAGES_PATH}/site-packages"
INSTALL: Final = """
import glob, os, subprocess, sys, venv
target, requirements = sys.argv[1:]
print("installing", requirements, "with", sys.executable, flush=True)
venv.create(target, system_site_packages=True, symlinks=True, with_pip=False)
(site,) = glob.glob(target + "/lib/python*/site-packages")
with open(site + "/image.pth", "w") as file:
    file.writelines(path + "\\n" for path in sys.path if path.endswith("-packages"))
python = target + "/bin/python"
options = ["--no-input", "--disable-pip-version-check", "--no-cache-dir"]
command = [sys.executable, "-m", "pip", "--python", python, "install", *options, "-r", requirements]
error = "it ended with an error"
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as pip:
    for line in pip.stderr:
        sys.stderr.write(line)
        error = line.strip() if line.startswith("ERROR:") else error
if pip.returncode:
    sys.exit(f"{os.path.basename(requirements)}: pip: {error}")
os.symlink(site, target + "/site-packages")
"""


def build_installer(trainer: dict[str, Any], requirements: str) -> dict[str, Any]:
    """The init container, with the trainer's image, settings and resources."""
    return {
        "name": names.VOLUME_PACKAGES,
        **{field: trainer[field] for field in INSTALLER_FIELDS if field in trainer},
        "command": ["python", "-c", INSTALL, names.PACKAGES_PATH, f"{names.CODE_PATH}/{requirements}"],
        "workingDir": names.CODE_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": names.VOLUME_CODE, "mountPath": names.CODE_PATH, "readOnly": True},
            {"name": names.VOLUME_PACKAGES, "mountPath": names.PACKAGES_PATH},
        ],
    }


def add_search_path(env: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The environment with the packages first on PYTHONPATH, before the user's own."""
    theirs = next((v["value"] for v in env if v.get("name") == "PYTHONPATH" and v.get("value")), None)
    others = [v for v in env if v.get("name") != "PYTHONPATH"]
    return [*others, {"name": "PYTHONPATH", "value": f"{SITE}:{theirs}" if theirs else SITE}]
