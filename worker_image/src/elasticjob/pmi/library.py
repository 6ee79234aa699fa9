"""Which MPI there is, whether it can be used, and what it is told before it starts. Pure but for `load`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from elasticjob.errors import ConfigurationError

REMEDY = 'pip install "elasticjob[mpi]", which brings mpi4py and MPICH'
_KNOWN = ("MPICH", "Intel(R) MPI", "MVAPICH")  # of MPICH's family: they ask a launcher in PMI
# What other launchers leave, by which the library would believe them.
_FOREIGN = ("PMI_PORT", "PMI_ID", "PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PMI_SPAWNED")


# One for each of libfabric's providers over TCP. Without them MPICH takes the first interface, which may lead nowhere.
_INTERFACES = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE")


def load() -> Any:
    """mpi4py's MPI, not started yet unless the script did that. Raises ConfigurationError with the remedy."""
    try:
        import mpi4py
    except ImportError:
        raise ConfigurationError(f"mpi4py is not installed: {REMEDY}.") from None
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigurationError(f"mpi4py finds no MPI ({error}): {REMEDY}.") from None
    problem = find_problem(MPI.Get_library_version())
    if problem is not None:
        raise ConfigurationError(problem)
    return MPI


def find_problem(version: str) -> str | None:
    """What is wrong with a library that calls itself so; None if nothing is known to be."""
    if version.startswith(_KNOWN):
        return None
    name = version.partition(",")[0].partition("\n")[0].strip() or "without a name"
    return (
        f"mpi4py uses the MPI library {name}, which starts only under a launcher of its own. Uninstall it and"
        f" {REMEDY}; where both have to stay, set MPI4PY_MPIABI=mpich in the pod template."
    )


def prepare(environ: MutableMapping[str, str], interface: str | None) -> None:
    """Set what the library reads when it starts. What the author of the job has set stays."""
    forget(environ)
    environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")  # over UCX, the loss of a rank ends the others with a signal
    if interface is not None:
        for name in _INTERFACES:
            environ.setdefault(name, interface)


def forget(environ: MutableMapping[str, str]) -> None:
    """Remove what says that a launcher of MPI has started this process: what it starts is no rank."""
    for name in _FOREIGN:
        environ.pop(name, None)
