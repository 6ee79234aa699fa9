"""A process's view of its world, and how it joins it: rank, size, backend, network."""
