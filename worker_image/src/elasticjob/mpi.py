"""MPI in an ElasticJob: `from elasticjob.mpi import MPI` in place of `from mpi4py import MPI`.

`MPI.COMM_WORLD` is the world of this generation, without mpirun and ssh. State comes from the script's checkpoint.
"""

from __future__ import annotations

from elasticjob.pmi import here, joining

MPI = joining.join(here.HERE, here.GROUP_RANK)

__all__ = ["MPI"]
