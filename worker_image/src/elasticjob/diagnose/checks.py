"""The checks of one machine or pod. Each takes the environment and returns a `Finding`; none raises or takes long."""

from __future__ import annotations

import base64
import email.utils
import http.client
import json
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from elasticjob import __version__, env
from elasticjob.context import backends, context, network
from elasticjob.diagnose import frameworks, hardware
from elasticjob.diagnose.findings import FAIL, OK, SKIP, WARN, Finding
from elasticjob.diagnose.hardware import Environment
from elasticjob.errors import ElasticJobError

_PATIENCE = 3.0  # seconds for one attempt to connect
_LEAST_TORCH = (2, 4)


def check_versions(environ: Environment) -> Finding:
    """The versions of Python, torch and the runtime."""
    mine = f"Python {sys.version.split()[0]}, elasticjob {__version__}"
    try:
        import torch
    except ImportError as error:
        return Finding("versions", FAIL, f"{mine}, torch cannot be imported: {error}", "install torch in the image")
    found = f"{mine}, torch {torch.__version__}"
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _LEAST_TORCH:
        return Finding("versions", FAIL, found, "use torch 2.4 or newer")
    return Finding("versions", OK, found)


def check_torch_internals(environ: Environment) -> Finding:
    """The private names of torch, used for speed, that this version does not have."""
    import torch

    from elasticjob.torchcompat import catalogue

    missing = catalogue.find_missing()
    if not missing:
        return Finding("torch internals", OK, f"all {len(catalogue.PROBES)} that are used are there")
    found = "; ".join(f"{one.purpose} ({', '.join(one.names)}): {one.without}" for one in missing)
    text = f"torch {torch.__version__} is without {len(missing)} of {len(catalogue.PROBES)}: {found}"
    return Finding("torch internals", WARN, text, "nothing breaks; docs/runtime.md names the versions that have all")


def check_environment(environ: Environment) -> Finding:
    """The variables of the launcher and the operator."""
    try:
        here = context.read_context(environ)
        if env.has_hub(environ):
            env.load(environ)
    except (ElasticJobError, ValueError) as error:
        return Finding("environment", FAIL, str(error), "see the message; in a pod the operator sets these variables")
    if not here.launched:
        return Finding("environment", OK, "no launcher: a world of one")
    kind = "an elastic agent" if here.elastic else "a launcher"
    return Finding("environment", OK, f"started by {kind}: rank {here.rank} of {here.world_size}")


def check_names(environ: Environment) -> Finding:
    """Whether this host's name and the master's name resolve."""
    host = socket.gethostname()
    wanted = [host]
    master = environ.get("MASTER_ADDR", "")
    if master:
        wanted.append(master)
    missing = [name for name in wanted if not network.resolve(name)]
    found = ", ".join(f"{name} = {' '.join(network.resolve(name)) or 'nothing'}" for name in wanted)
    if master in missing:
        return Finding("names", FAIL, found, "use the pod's IP as MASTER_ADDR, or repair the cluster's DNS")
    if host in missing:
        return Finding(
            "names", WARN, found, "gloo looks the host name up: set GLOO_SOCKET_IFNAME, as elasticjob.init() does"
        )
    return Finding("names", OK, found)


def check_interface(environ: Environment) -> Finding:
    """Whether an interface has the pod's address."""
    table = network.read_interfaces()
    names = ", ".join(f"{name} {address}" for name, address in table.items())
    wanted = environ.get("GLOO_SOCKET_IFNAME", "")
    if wanted and wanted not in table:
        return Finding(
            "interface", FAIL, f"GLOO_SOCKET_IFNAME={wanted} does not exist here ({names})", "unset it or correct it"
        )
    pod_ip = environ.get(env.POD_IP, "")
    # All of 127.0.0.0/8 belongs to this machine, even if the table does not list it.
    if pod_ip and pod_ip not in table.values() and not pod_ip.startswith("127."):
        return Finding(
            "interface",
            FAIL,
            f"no interface has the pod's address {pod_ip} ({names})",
            "check hostNetwork and the CNI; ELASTICJOB_POD_IP must be status.podIP",
        )
    return Finding("interface", OK, names or "the table cannot be read on this system")


def check_ports(environ: Environment) -> Finding:
    """Whether a port can be opened, and reached at the address that other pods use."""
    address = network.own_address(environ)
    try:
        with socket.create_server((address, 0)) as server:
            with socket.create_connection(server.getsockname()[:2], timeout=_PATIENCE):
                pass
            return Finding("ports", OK, f"{address}: listened and connected")
    except OSError as error:
        return Finding(
            "ports", FAIL, f"{address}: {error}", "check that the address is this pod's, and its NetworkPolicy"
        )


def check_master(environ: Environment) -> Finding:
    """Whether the store of the world responds."""
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not address or not port.isdigit():
        return Finding("store", SKIP, "no MASTER_ADDR and MASTER_PORT")
    if environ.get("RANK") == "0" and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return Finding("store", SKIP, "this process will host it")
    try:
        with socket.create_connection((address, int(port)), timeout=_PATIENCE):
            return Finding("store", OK, f"{address}:{port} answers")
    except OSError as error:
        remedy = "is rank 0 running? does a NetworkPolicy or a firewall stand between? is the port taken?"
        return Finding("store", FAIL, f"{address}:{port}: {error}", remedy)


def check_backends(environ: Environment) -> Finding:
    """The backends that torch has, and the one that `init()` would choose."""
    facts = backends.observe_backends()
    have = ", ".join(name for name in backends.KNOWN if facts.has(name)) or "none"
    try:
        choice = backends.choose_backend(facts, None, context.read_context(environ).local_world_size)
    except (ElasticJobError, ValueError) as error:
        return Finding("backends", FAIL, f"{have}: {error}", "install an official build of torch")
    return Finding("backends", OK, f"{have}; init() takes {choice.backend}: {choice.reason}")


def check_token(environ: Environment) -> Finding:
    """Whether the projected token exists and has not expired."""
    path = environ.get(env.TOKEN_FILE, "")
    if not path:
        return Finding("token", SKIP, "not in an ElasticJob's pod")
    remedy = "the operator mounts it as a projected volume: delete the pod to get a new one"
    try:
        payload = Path(path).read_text().strip().split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        left = float(claims["exp"]) - time.time()
    except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
        return Finding("token", FAIL, f"{path} is not a token ({type(error).__name__})", remedy)
    if left <= 0:
        return Finding("token", FAIL, f"expired {-left:.0f} s ago", remedy + "; check the clock")
    return Finding("token", OK, f"good for {left:.0f} s")


def check_hub(environ: Environment) -> Finding:
    """Whether the operator's hub responds, and whether the clocks agree."""
    url = environ.get(env.HUB_URL, "")
    if not url:
        return Finding("hub", SKIP, "not in an ElasticJob's pod")
    remedy = "is the operator running? does a NetworkPolicy stand between? (kubectl get pods -A | grep elasticjob)"
    try:
        status, date = _ask_hub(url, environ)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Finding("hub", FAIL, f"{url}: {error}", remedy)
    # The hub rejects a request without a token, but any of these responses shows that it is reachable.
    if status not in (400, 401, 403, 426, 503):
        return Finding("hub", WARN, f"{url}: an unexpected answer, {status}", "is it the hub that listens there?")
    skew = time.time() - email.utils.parsedate_to_datetime(date).timestamp() if date else 0.0
    if abs(skew) > 30:
        return Finding("hub", WARN, f"answers; its clock is {skew:+.0f} s from this one", "set the node's clock (NTP)")
    return Finding("hub", OK, f"{url} answers")


def _ask_hub(url: str, environ: Environment) -> tuple[int, str | None]:
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("not an address")
    connection: http.client.HTTPConnection
    if parts.scheme == "wss":
        trust = ssl.create_default_context(cafile=environ.get(env.CA_FILE) or None)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_PATIENCE, context=trust)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_PATIENCE)
    try:
        connection.request("GET", env.AGENT_PATH)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Date")
    finally:
        connection.close()


def check_clock(environ: Environment) -> Finding:
    """Whether the clock shows a plausible time."""
    now = time.gmtime()
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", now)
    if now.tm_year < 2024:
        return Finding("clock", FAIL, text, "set the node's clock (NTP): tokens and certificates depend on it")
    return Finding("clock", OK, text)


Check = Callable[[Environment], Finding]

CHECKS: tuple[Check, ...] = (
    check_versions,
    check_torch_internals,
    check_environment,
    check_names,
    check_interface,
    check_ports,
    check_master,
    check_clock,
    hardware.check_shared_memory,
    hardware.check_memory,
    hardware.check_disk,
    hardware.check_devices,
    hardware.check_device_health,
    check_backends,
    frameworks.check_launcher,
    frameworks.check_frameworks,
    check_token,
    check_hub,
)


# What cannot keep a pod out of the world: names that torch may change, and what is only advice for the script.
_ADVICE = (check_torch_internals, frameworks.check_launcher, frameworks.check_frameworks)
PREFLIGHT_CHECKS: tuple[Check, ...] = tuple(check for check in CHECKS if check not in _ADVICE)


def run_checks(environ: Environment, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """The findings of these checks. A check that raises is itself a finding."""
    findings = []
    for check in checks:
        try:
            findings.append(check(environ))
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            findings.append(Finding(name, FAIL, f"the check broke: {type(error).__name__}: {error}", "report it"))
    return findings
