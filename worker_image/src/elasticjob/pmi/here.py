"""This process's place in the world, read when the module is imported: so the workers import it, and not their parent.

MPI starts with the import of mpi4py, which must not happen before a fork. Whoever imports ahead for the workers stops
at a module that reads a rank.
"""

from __future__ import annotations

import os

from elasticjob.context.context import read_context, read_integer

HERE = read_context(os.environ)
GROUP_RANK = read_integer(os.environ, "GROUP_RANK", 0)
