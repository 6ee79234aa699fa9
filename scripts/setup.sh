#!/usr/bin/env bash
# Creates .venv, or checks that it is what the project's files ask for. A second run takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}
venv=.venv
wanted=$({ cat ./pyproject.toml */pyproject.toml constraints.txt; echo "$torch"; "$python" --version; pwd; } | sha256sum | cut -c1-16)

# The stamp says what was installed; the look at the packages, that it still is.
if [ -f "$venv/.stamp-$wanted" ] && "$venv/bin/python" scripts/check_environment.py; then
  exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: Python 3.11 or newer is needed, $("$python" --version) was found: set PYTHON=" >&2
  exit 1
}
echo "setup: creating $venv (about two minutes, once)" >&2
rm -f "$venv"/.stamp-*
"$python" -m venv "$venv" || {
  echo "setup: '$python -m venv' failed: on Debian, apt-get install python3-venv" >&2
  exit 1
}
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" -c constraints.txt "$torch"
"${pip[@]}" -c constraints.txt -e '.[dev]' -e devcluster -e worker_image
"$venv/bin/python" scripts/check_environment.py
touch "$venv/.stamp-$wanted"
