"""What a step is made of, whatever the size of the world: samplers, and virtual ranks with all that belongs to them."""
