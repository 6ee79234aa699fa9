"""What a process knows about its world, and how it joins it: rank, size, backend, network."""
