"""Which MPI is taken, and what it is told."""

from __future__ import annotations

import pytest

from elasticjob.pmi import library

VERSIONS = {
    "MPICH Version:      5.0.2\nMPICH Release date: ...": None,
    "Intel(R) MPI Library 2021.13 for Linux* OS": None,
    "MVAPICH Version : 4.0": None,
    "Open MPI v5.0.11, package: Open MPI root@host Distribution, ident: 5.0.11": "Open MPI v5.0.11",
    "Microsoft MPI 10.1": "Microsoft MPI 10.1",
    "": "without a name",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_library_of_another_family_is_named_with_the_remedy(version: str) -> None:
    problem, name = library.find_problem(version), VERSIONS[version]
    if name is None:
        assert problem is None
    else:
        assert problem is not None
        assert f"library {name}, " in problem
        assert 'pip install "elasticjob[mpi]"' in problem
        assert "MPI4PY_MPIABI=mpich" in problem


def test_what_another_launcher_has_left_is_forgotten() -> None:
    environ = {"PMI_RANK": "3", "PMIX_NAMESPACE": "slurm.1", "PMI_SIZE": "9", "RANK": "0"}
    library.prepare(environ, "eth0")
    assert environ == {"RANK": "0", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_TCP_IFACE": "eth0", "FI_SOCKETS_IFACE": "eth0"}


def test_what_the_author_of_the_job_has_set_stays() -> None:
    given = {"MPIR_CVAR_CH4_NETMOD": "ucx", "FI_TCP_IFACE": "ib0", "FI_SOCKETS_IFACE": "ib0"}
    environ = dict(given)
    library.prepare(environ, "eth0")
    assert environ == given
    empty: dict[str, str] = {}
    library.prepare(empty, None)
    assert empty == {"MPIR_CVAR_CH4_NETMOD": "ofi"}
