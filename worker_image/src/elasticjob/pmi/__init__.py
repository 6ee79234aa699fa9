"""What a launcher of MPI does for a library of MPICH's family, done for one world: see `elasticjob.mpi`."""
