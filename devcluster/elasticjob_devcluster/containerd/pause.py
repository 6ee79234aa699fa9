"""The sandbox image, which holds a pod's namespaces open. Any image whose command sleeps is sufficient, so it is built
from the machine's own `sleep` and its shared libraries.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from elasticjob_devcluster.containerd.files import SANDBOX_IMAGE


def write_pause_image(path: Path) -> None:
    """Write an archive that `ctr images import` accepts."""
    program = shutil.which("sleep") or "/bin/sleep"
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=10).stdout
    libraries = re.findall(r"(/\S+) \(0x", text)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for source, name in [(program, "bin/sleep"), *((lib, lib.lstrip("/")) for lib in libraries)]:
            content = Path(source).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "arm64" if platform.machine() == "aarch64" else "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [SANDBOX_IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, mode="w") as tar:
        for name, content in (
            ("layer.tar", layer.getvalue()),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
